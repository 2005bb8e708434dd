"""Sizes that follow the machine: SmolLM2-135M's on 8 and 24 GB, the lab's, those of GPUs, and errors before a start."""

import re

import pytest

from scalerl.core.errors import ConfigError
from scalerl.core.machine import Memory
from scalerl.training.config import LAB, read_config
from scalerl.training.config.base import replace
from scalerl.training.machines import sizing
from scalerl.training.machines.memory import cache_bytes_per_token, disk_bytes, kept_checkpoints, trainer_memory
from scalerl.training.machines.plan import disk_line
from scalerl.training.machines.sizing import Machine, cure, host_needs, room_note, sized, trainer_cure
from scalerl.training.models.sizes import WELL_KNOWN, SizedModel, of_config
from scalerl.training.placement.sizes import RunSizes

SMOL = {
    "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip
SIZES = of_config(SMOL.get)
WORDS = ["--model", "./my-model", "--data", "prompts.jsonl", "--task", "math", "--hardware.device", "cpu"]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)


def configured(*words):
    config = read_config(None, [*WORDS, *words])
    return replace(config, hardware=replace(config.hardware, dtype="float32", generator_threads=1, trainer_threads=1))


def on(gigabytes, free=0.95):
    return Machine(Memory(gigabytes * 1e9, free * gigabytes * 1e9, "this machine"))


def sizes(config, prompt=30):
    return RunSizes.of(config, SizedModel(SIZES, ""), longest_prompt=prompt)


def chosen(gigabytes, *words):
    machine = on(gigabytes)
    run = sized(sizes(configured(*words)), machine)
    return run, host_needs(run, machine.host)


@pytest.mark.parametrize("gigabytes", [8, 24, 64])
def test_the_defaults_fit_on_every_usual_machine(gigabytes):
    config, needs = chosen(gigabytes)
    assert needs.total <= 0.9 * 0.95 * gigabytes * 1e9 and config.slots >= 8
    assert gigabytes <= 16 or needs.total <= gigabytes * 0.5e9


def test_little_memory_is_met_by_smaller_micro_batches_and_recomputation():
    config, needs = chosen(8)
    assert config.micro_batch_tokens < 1280 and config.recomputed is True
    assert config.hardware.trainer_helpers == 0 and needs.total < 7e9
    kept, _ = chosen(8, "--learner.gradient_checkpointing", "false")
    assert kept.recomputed is False and kept.slots >= 1


def test_the_lab_has_its_sizes_on_every_machine():
    config = replace(LAB, hardware=configured().hardware)
    for gigabytes in (4, 8, 24):
        found = sized(RunSizes.of(config), on(gigabytes))
        assert (found.slots, found.micro_batch_tokens, found.recomputed) == (256, 1280, False)
        assert found.hardware.trainer_helpers == "auto"


def test_what_cannot_fit_is_an_error_with_numbers_and_settings_that_would_fit():
    with pytest.raises(ConfigError) as error:
        chosen(6)
    text = str(error.value)
    need, free, total = map(float, re.search(r"needs up to ([\d.]+) GB .* and ([\d.]+) of ([\d.]+) GB", text).groups())
    assert free == 5.7 and total == 6.0 and need > 0.9 * free and "trainer" in text and "recipe.length" in text
    adapters = float(re.search(r"model.lora.rank = 16 \(([\d.]+) GB\)", text)[1])
    assert adapters <= 0.9 * free
    config, needs = chosen(6, "--model.lora.rank", "16")  # the advice works
    assert needs.total <= 0.9 * 5.7e9 and config.lora.rank == 16


def test_a_number_of_slots_that_does_not_fit_is_an_error_with_one_that_does():
    with pytest.raises(ConfigError, match=r"rollouts.slots = (\d+) or less, or auto to choose it here") as error:
        chosen(24, "--preset", "small", "--rollouts.slots", "800")
    most = int(re.search(r"rollouts.slots = (\d+)", str(error.value))[1])
    config, _ = chosen(24, "--preset", "small", "--rollouts.slots", str(most))
    assert config.slots == most
    with pytest.raises(ConfigError, match=r"rollouts\.slots = "):
        chosen(24, "--preset", "small", "--rollouts.slots", str(most + 1))


def test_an_evaluation_process_has_its_weights_cache_programs_and_one_version_in_the_channel():
    paused, without = chosen(64, "--preset", "small", "--rollouts.slots", "16", "--hardware.trainer_helpers", "0")
    words = ["--preset", "small", "--rollouts.slots", "16", "--hardware.trainer_helpers", "0"]
    beside, needs = chosen(64, *words, "--evaluation.overlap", "true")
    assert beside.slots == paused.slots and beside.micro_batch_tokens == paused.micro_batch_tokens
    weights = 4 * SIZES.params
    assert needs.channel - without.channel == pytest.approx(weights)
    assert needs.generators == pytest.approx(2 * without.generators)
    assert needs.cache - without.cache == pytest.approx(16 * paused.row_tokens * 4 * SIZES.cache_width, rel=0.05)
    assert needs.processes > without.processes and needs.trainer == without.trainer
    copies = disk_bytes(beside) - disk_bytes(paused)  # of the weights that a checkpoint may have
    assert copies == pytest.approx((kept_checkpoints(paused) + 1) * weights)


def test_a_saved_size_that_no_longer_fits_is_one_line_with_a_size_that_does():
    config, needs = chosen(24)
    assert room_note(config, on(24)) == ""
    line = room_note(config, on(24, free=0.98 * needs.total / 24e9))
    fewer = int(re.search(r"--rollouts.slots (\d+)", line)[1])
    assert "\n" not in line and 1 <= fewer < config.slots
    assert "--rollouts.slots" not in room_note(config, on(24, free=0.1))


def test_a_lack_of_memory_names_settings_that_a_resume_may_change():
    config = chosen(24)[0]
    slots = config.slots
    assert f"(now {slots})" in cure(slots, 1) and "--rollouts.slots" in cure(slots, 1)
    assert "recipe.length" in cure(1, 1)
    assert "--learner.micro_batch_tokens 640 (now 1280)" in trainer_cure(
        config.written_to(configured()).learner, config.hardware
    )


def test_on_a_gpu_the_slots_are_those_that_fit_next_to_the_trainer():
    words = ["--model", "Qwen/Qwen3-0.6B", "--data", "p.jsonl", "--task", "math", "--device", "cuda"]
    model = WELL_KNOWN["Qwen/Qwen3-0.6B"]
    run = RunSizes.of(read_config(None, words), SizedModel(model, ""), longest_prompt=100)
    found = {}
    for gigabytes in (24, 80, 320):
        gpu = Memory(gigabytes * 1e9, gigabytes * 1e9, "placement.gpu_gb")
        found[gigabytes] = here = sized(run, Machine(on(64).host, gpu))
        trainer = trainer_memory(model, 1, max(here.micro_batch_tokens, run.row_tokens), here.recomputed).total
        assert trainer + here.slots * run.row_tokens * cache_bytes_per_token(model) < 0.9 * gigabytes * 1e9
    assert 8 <= found[24].slots < found[80].slots < found[320].slots
    assert found[320].micro_batch_tokens == 16_384 and not found[320].recomputed


def test_slots_of_vllm_and_of_engines_on_ray_do_not_depend_on_this_machine():
    for words in (["--placement.engine", "vllm"], ["--placement.backend", "ray"]):
        run = sizes(configured(*words))
        assert sized(run, on(4)) == run


def test_the_line_on_disk_has_a_checkpoint_its_number_and_the_rows():
    words = ["--checkpoint.keep", "2", "--checkpoint.every", "50", "--steps", "400", "--evaluation.every", "10"]
    config = configured(*words, "--rollouts.slots", "32", "--rollouts.expected_tokens", "1000")
    line = disk_line(sizes(config))
    size, count = re.search(r"([\d.]+) GB a checkpoint, at most (\d+) of them", line).groups()
    # weights and two moments in FP32, and about half of 1,000 tokens of 32 sequences; two, one in writing, the best
    cache = 32 * 500 * cache_bytes_per_token(SIZES, width=4)
    assert 12 * SIZES.params + cache < 1e9 * float(size) + 0.05e9 < 12 * SIZES.params + 2 * cache and count == "4"
    # 1,000 rows of 2 kB, and 100 evaluations with 2 x 16 rollouts of 1,000 tokens
    assert line.endswith("take 53 MB per 1,000 updates")
    served = replace(config, placement=replace(config.placement, engine="vllm"))
    assert f"{12 * SIZES.params / 1e9:.1f} GB a checkpoint" in disk_line(sizes(served))


def test_an_evaluation_alone_takes_half_of_the_memory_and_what_is_free_only_if_it_must(monkeypatch):
    for free, row, expected in ((20e9, 1e9, 11), (8e9, 1e9, 6), (20e9, 13e9, 1), (20e9, 30e9, 0)):
        # half of 24 GB or 90% of what is free, less 1 GB of working memory
        monkeypatch.setattr(sizing, "host_memory", lambda free=free: Memory(24e9, free, "this machine"))
        monkeypatch.setattr(sizing, "resident_bytes", lambda: 0)
        assert sizing.cache_rows(row, 1e9, None, given=False) == expected
    assert sizing.cache_rows(1e9, 1e9, None, given=True) == 17
