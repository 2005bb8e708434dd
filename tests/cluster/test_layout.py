"""Errors and output of a dry run and of `scalerl plan`."""

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import call
from doc_pages import json_keys

from scalerl.core.errors import ConfigError
from scalerl.core.processes import ProcessDied
from scalerl.training.config import HuggingFaceModel, RunConfig
from scalerl.training.config.base import replace
from scalerl.training.config.data import PromptFile
from scalerl.training.config.placement import Placement
from scalerl.training.config.presets import LAB
from scalerl.training.config.recipe import PipelineRL
from scalerl.training.config.run import Hardware, LearnerSettings, Rollouts
from scalerl.training.machines.layout import check_layout, lay_out, lines
from scalerl.training.machines.measured import Measured
from scalerl.training.machines.plan import (
    SpeedInputs,
    batch_seconds,
    best_split,
    lengths_of,
    run_estimate,
    simulate,
    speeds_of,
    splits,
    with_layout,
)
from scalerl.training.machines.simulation import simulate_run
from scalerl.training.machines.speed import GPUS, Assumptions, Speeds
from scalerl.training.models.sizes import sizes_of
from scalerl.training.placement.sizes import RunSizes

PAPER = RunConfig(
    model=HuggingFaceModel(path="meta-llama/Llama-3.1-8B"),
    data=(PromptFile(path="p.jsonl", task="math"),),
    learner=LearnerSettings(micro_batch_tokens=32_768, gradient_checkpointing=True),
    hardware=Hardware(device="cuda"),
    placement=Placement(backend="ray", engine="vllm", trainer_ranks=16, generators=64, gpus=80),
)
SCOUT = "meta-llama/Llama-4-Scout-17B-16E"


def with_placement(**changes):
    return replace(PAPER, placement=replace(PAPER.placement, **changes))


def test_scorers_without_ray_are_an_error():
    with pytest.raises(ValueError, match="scorers: got 2 with backend 'local'; allowed: backend = 'ray'"):
        Placement(scorers=2)


def refused(config):
    with pytest.raises(ConfigError) as error:
        check_layout(lay_out(RunSizes.of(config)))
    return str(error.value)


def test_8b_fits_on_the_80_gpus_of_the_paper():
    layout = lay_out(RunSizes.of(PAPER))
    check_layout(layout)
    assert layout.gpus == 80 and layout.slots_of_an_engine == 12 and not layout.sharing
    # weights 2 x 8.03e9; 12 slots x (14,048 + 2,048 + 32 of a phrase) tokens x 131,072 bytes
    assert layout.at_limit.weights == pytest.approx(16.06e9, rel=1e-3)
    assert layout.at_limit.cache == 12 * 16_128 * 131_072
    printed = "\n".join(lines(layout))
    assert (
        "16 trainer ranks (FSDP2) and 64 vLLM generators: 80 GPUs" in printed
        and "table of well-known models" in printed
    )


def test_tensor_parallelism_must_divide_both_kinds_of_heads():
    # divides the 32 heads but not the 8 key-value heads
    config = with_placement(tensor_parallel=16, generators=4)
    assert "tensor_parallel: got 16" in refused(config) and "a divisor of both, 1, 2, 4, 8" in refused(config)


def test_too_many_gpus_are_an_error_and_servers_by_address_need_none():
    assert "80 GPUs in total; allowed: placement.gpus = 79" in refused(with_placement(gpus=79))
    served = with_placement(gpus=16, generators=1, servers=tuple(f"http://10.0.0.{i}:8000" for i in range(64)))
    assert lay_out(RunSizes.of(served)).gpus == 16
    check_layout(lay_out(RunSizes.of(served)))


def test_each_side_that_exceeds_its_gpus_is_an_error_with_its_bytes_and_settings():
    # masters, gradients and moments: 16 bytes for each of 8.03e9 parameters, a half of them or a 16th
    text, held = refused(with_placement(trainer_ranks=2)), lay_out(RunSizes.of(PAPER)).trainer.total
    (found,) = re.findall(r"each trainer GPU holds ([\d.]+) GB", text)
    assert float(found) == pytest.approx((held + 16 * 8.03e9 * (1 / 2 - 1 / 16)) / 1e9, rel=0.01)
    crowded = replace(PAPER, rollouts=Rollouts(slots=64 * 200, expected_tokens=5000))
    # weights of 16.06 GB and 200 x (256 + 5000) x 131,072 bytes = 137.8 GB
    assert "each generator GPU 153.8 GB (200 slots at the mean length)" in refused(crowded)


def test_expert_ranks_must_divide_the_experts_and_a_dense_model_has_none():
    assert "expert_ranks: got 16 for a model of no experts per layer; allowed: 1" in refused(
        with_placement(expert_ranks=16)
    )
    scout = replace(with_placement(expert_ranks=24, trainer_ranks=48, gpus=None), model=HuggingFaceModel(path=SCOUT))
    assert "got 24 for a model of 16 experts per layer; allowed: 1, 2, 4, 8, 16" in refused(scout)
    fits = replace(scout, placement=replace(scout.placement, expert_ranks=16))
    assert "48 trainer ranks (FSDP2), experts on 16, and 64 vLLM generators" in "\n".join(
        lines(lay_out(RunSizes.of(fits)))
    )


# ------------------------------------------------------------------------------------------------------------ splits


def test_splits_use_all_gpus_and_whole_nodes_of_trainers():
    assert splits(4, 1, 8) == [(1, 3), (2, 2), (3, 1)]
    assert splits(8, 4, 8) == [(4, 1)]
    assert splits(32, 8, 8) == [(8, 3), (16, 2), (24, 1)]
    with pytest.raises(ConfigError, match="--gpus: got 4 with generators of 8 GPUs; allowed: at least 9"):
        splits(4, 8, 8)


def test_the_best_split_has_the_most_useful_tokens_and_keeps_both_sides_busy():
    measured = Measured(base_s=0.0, slope_s=0.001, trainer_tokens_per_s=1000.0, drift=((1.0, 1.0),), trained_share=1.0,
                        tokens_mean=0.0, tokens_max=0.0, batch=0, swap_s=0.0, ranks=1)  # fmt: skip
    inputs = SpeedInputs(Assumptions(GPUS["H100"]), measured, updates=8)
    recipe = replace(PAPER.recipe, prompts_per_step=12, off_policy=PipelineRL(max_lag=2))
    config = replace(PAPER, recipe=recipe, rollouts=Rollouts(slots=192, expected_tokens=5000))
    outcomes = best_split(RunSizes.of(config), inputs, lengths_of(RunSizes.of(config), None), 16)
    assert [one.trainer_ranks + one.generators for one in outcomes] == [16] * len(outcomes) and len(outcomes) > 2
    useful = [one.figures.useful_tokens_per_s for one in outcomes]
    assert useful == sorted(useful, reverse=True)
    assert abs(outcomes[0].trainer_ranks - 8) <= 1  # a rank trains 1,000 tokens/s and a generator samples as many
    too_large = replace(config, model=HuggingFaceModel(path="meta-llama/Llama-4-Scout-17B-16E"))
    with pytest.raises(ConfigError, match="no split of them into trainers and generators fits the model"):
        best_split(RunSizes.of(too_large), SpeedInputs(inputs.assumed), lengths_of(RunSizes.of(config), None), 8)


class Rated:
    """Stands for a simulation: useful tokens/s and staleness as functions of ranks and slots."""

    def __init__(self, monkeypatch, rate, staleness):
        self.rate, self.staleness, self.slots = rate, staleness, []
        monkeypatch.setattr("scalerl.training.machines.plan.simulate", self)

    def __call__(self, run, inputs, lengths, coarse=False):
        ranks, slots = run.placement.trainer_ranks, run.slots
        self.slots.append((ranks, slots))
        figures = SimpleNamespace(
            useful_tokens_per_s=self.rate(ranks, slots), staleness_mean=self.staleness(ranks, slots)
        )
        return SimpleNamespace(trainer_ranks=ranks, slots=slots, figures=figures)


EIGHT = (SpeedInputs(Assumptions(GPUS["H100"])), lengths_of(RunSizes.of(PAPER), None), 8)


def test_the_search_takes_the_fewest_slots_that_keep_99_percent_of_the_useful_tokens(monkeypatch):
    """Training takes all tokens of 200 slots; an eighth of the slots of the split is a step."""
    rated = Rated(monkeypatch, lambda ranks, slots: min(slots, 200), lambda ranks, slots: slots / 100)
    best, *_ = best_split(RunSizes.of(replace(PAPER, rollouts=Rollouts())), *EIGHT)
    most = max(slots for ranks, slots in rated.slots if ranks == best.trainer_ranks)
    steps = [most * eighths // 8 for eighths in range(1, 9)]
    assert most > 225 and best.slots == min(slots for slots in steps if slots >= 198)
    inputs = replace(PAPER, rollouts=Rollouts(slots=most))
    assert best_split(RunSizes.of(inputs), *EIGHT)[0].slots == most  # those that a user has set


def test_activations_are_recomputed_only_where_they_do_not_fit_or_the_rest_is_slower():
    """A 0.6B model fits with all activations; 8B on three ranks does not, but does with recomputation."""
    place = replace(PAPER.placement, trainer_ranks=3, generators=1, gpus=None)
    config = replace(PAPER, model=HuggingFaceModel(path="Qwen/Qwen3-0.6B"), placement=place, learner=LearnerSettings())
    config = replace(config, rollouts=Rollouts(slots=16))
    lengths = lengths_of(RunSizes.of(config), None)

    def chosen(config, *micro_batches):
        run = with_layout(RunSizes.of(config), SpeedInputs(Assumptions(GPUS["H100"])), lengths, micro_batches)
        return run.micro_batch_tokens, run.recomputed

    wide = RunSizes.of(config).widest
    assert chosen(config, 16_384, 4_096)[1] is False
    assert chosen(replace(config, learner=LearnerSettings(gradient_checkpointing=True)), wide) == (wide, True)
    large = replace(config, model=HuggingFaceModel(path="Qwen/Qwen3-8B"))
    assert chosen(large, 16_384) == (16_384, True)
    with pytest.raises(ConfigError, match="trainer"):
        chosen(replace(large, learner=LearnerSettings(gradient_checkpointing=False)), 16_384)


def test_a_plan_counts_the_time_of_checkpoints():
    """8.03e9 parameters in FP32 with two moments are 96.4 GB, at 2 GB/s 48.2 s; at 36 updates/h one takes 100 s."""
    config = replace(
        PAPER, checkpoint=replace(PAPER.checkpoint, every=5), evaluation=replace(PAPER.evaluation, every=100)
    )
    inputs = EIGHT[0]
    figures = simulate_run(RunSizes.of(LAB), Speeds(), np.array([4, 8]), 2)
    found = run_estimate(RunSizes.of(config), inputs, dataclasses.replace(figures, updates_per_h=36.0), eval_s=300.0)
    assert found.checkpoint_s == pytest.approx(12 * sizes_of(config.model).sizes.params / 2e9)
    assert found.checkpoint_s == pytest.approx(48.2, abs=0.1)
    assert found.evaluated_updates_per_h == pytest.approx(3600 / (100 + 48.18 / 5 + 300 / 100), rel=1e-4)
    seconds = config.steps * (100 + found.checkpoint_s / 5) + (1 + config.steps // 100) * 300
    assert found.hours == pytest.approx(seconds / 3600)


def test_an_update_takes_the_longer_side_with_a_lag_and_both_sides_in_turns_without_one_or_on_one_gpu():
    """Completions have 20 tokens: with all of a batch decoded together it takes 20 x 10 ms, and an update 0.4 s."""
    place = Placement(trainer_ranks=1, generators=1, gpus_per_generator=1)
    config = replace(
        PAPER, model=HuggingFaceModel(path="Qwen/Qwen3-0.6B"), placement=place, steps=100,
        rollouts=replace(PAPER.rollouts, slots=PAPER.recipe.completions_per_step, schedule="eager"),
        hardware=replace(PAPER.hardware, device="cuda"),
    )  # fmt: skip
    batch, lengths = PAPER.recipe.completions_per_step, np.full(PAPER.recipe.completions_per_step, 20)
    inputs = SpeedInputs(
        Assumptions(GPUS["H100"]), generator_step_s=0.01, trainer_rate=batch * 20 / 0.4,
        transfer_s=0.0, updates=8,
    )  # fmt: skip

    def update_s(config, coarse=False):
        return 3600 / simulate(RunSizes.of(config), inputs, lengths, coarse=coarse).figures.updates_per_h

    assert batch_seconds(RunSizes.of(config), speeds_of(RunSizes.of(config), inputs)[0], lengths) == pytest.approx(
        (0.2, 0.4)
    )
    assert update_s(config) == pytest.approx(0.4, rel=0.05) == update_s(config, coarse=True)
    on_policy = replace(config, recipe=replace(config.recipe, off_policy=PipelineRL(max_lag=0)))
    assert update_s(on_policy) == pytest.approx(0.6, rel=0.05) == update_s(on_policy, coarse=True)
    assert update_s(replace(config, placement=Placement(gpus=1))) == pytest.approx(0.6, rel=0.05)


def test_a_vllm_server_sends_no_more_than_its_api_process_can():
    """A tiny model decodes 1,000 sequences in 2 ms and a little; 20,000 tokens/s are 50 ms for them."""
    small = replace(PAPER, model=HuggingFaceModel(path="Qwen/Qwen3-0.6B"))
    inputs = SpeedInputs(Assumptions(GPUS["H100"]))

    def step(engine, running):
        placed = replace(small, placement=replace(small.placement, engine=engine))
        return speeds_of(RunSizes.of(placed), inputs)[0].step_seconds(running, 0.0)

    assert step("vllm", 1000) == pytest.approx(0.05) and step("torch", 1000) < 0.01
    assert step("vllm", 1) == step("torch", 1)  # below the limit
    assert "one vLLM server sends at most 20,000 tokens/s" in inputs.assumed.line


# --------------------------------------------------------------------------------------------------------------- CLI


KNOWN = ["--generator-tokens-per-s", "20000", "--trainer-tokens-per-s", "30000", "--updates", "10"]


@pytest.mark.slow
def test_plan_prints_its_results_as_text_and_as_documented_json(capsys):
    lag = ["--recipe.off_policy.max_lag", "8"]  # with which the slots are full
    code, out, _ = call(capsys, "plan", *KNOWN, *lag)
    assert code == 0 and "throughput: " in out and "staleness: " in out and "tokens/s as given" in out
    code, out, _ = call(capsys, "plan", *KNOWN, *lag, "--json")
    found = json.loads(out)
    keys = json_keys()
    parts = {name: set(found[name]) for name in ("model", "lengths")}
    assert set(found) | parts["model"] | parts["lengths"] == keys["plan"] and set(found["best"]) == keys["Outcome"]
    assert found["best"] == found["outcomes"][0] and found["best"]["staleness_max"] <= 8
    # the trainer is faster than the engine: 20,000 tokens/s with full slots
    assert found["best"]["tokens_per_s"] == pytest.approx(20_000, rel=0.05)


VLLM = ["--placement.engine", "vllm"]
NCCL = [*VLLM, "--placement.servers", "['http://a:1']", "--rollouts.weights", "nccl"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        # 768 + 1 slots x 16,128 tokens x 114,688 bytes, and weights of 1.2 GB with an FP32 head of 0.6 GB
        (
            ["--preset", "scalerl", "--device", "cuda", "--rollouts.slots", "768"],
            r"generator GPU 1424.2 GB \(768 slots at the length limit",
        ),
        ([*NCCL, "--recipe.off_policy.kind", "ppo-off-policy"], "got 'nccl' with ppo-off-policy of 8 batches; allowed"),
        ([*VLLM, "--placement.gpus_per_generator", "2"], "got 2 with tensor_parallel 1; allowed: auto or 1"),
    ],
    ids=["memory", "round", "gpus"],
)
@pytest.mark.usefixtures("prompt_file")
def test_the_dry_run_refuses_what_the_start_or_the_first_evaluation_would(capsys, words, message):
    code, _, error = call(capsys, "train", "--dry-run", "--model", "Qwen/Qwen3-0.6B", "--data", "p.jsonl", *words)
    assert code == 2 and re.search(message, error) and "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --from RUN (a run directory), or both --generator-tokens-per-s"),
        ([*KNOWN, "--gpu", "H10"], "--gpu: got 'H10' (did you mean 'H100'?)"),
        ([*KNOWN[2:], "--generator-tokens-per-s", "nan"], "got nan; allowed: a number above 0"),
        ([*KNOWN, "--sigma", "0.5"], "unknown option --sigma"),
        ([*KNOWN, "--gpus", "0"], "--gpus: got 0; allowed: a number above 0"),
    ],
)
def test_every_mistake_gives_a_one_line_error(capsys, words, message):
    code, _, error = call(capsys, "plan", *words)
    assert code == 2 and message in error and error.startswith("scalerl: ") and "Traceback" not in error


MODEL = ["--model", "Qwen/Qwen3-0.6B", "--device", "cuda", "--placement.engine", "vllm", "--rollouts.slots", "8"]


@pytest.mark.usefixtures("prompt_file")
@pytest.mark.parametrize("verb", [["train", "--dry-run"], ["plan"]])
@pytest.mark.parametrize("path", ["no.jsonl", "./no", "a/b/c", "empty"])
def test_a_plan_of_prompts_that_do_not_exist_is_an_error(capsys, verb, path):
    Path("empty").mkdir()
    code, _, error = call(capsys, *verb, *MODEL, "--data", path)
    assert code == 2 and "data.path: " in error and path.removeprefix("./") in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_hidden_layers", 1e300), ("hidden_size", 10**12), ("head_dim", -(10**12)), ("n_layer", 10**7),
    ],
)  # fmt: skip
def test_absurd_sizes_of_a_model_are_an_error_at_once(capsys, prompt_file, name, value):
    sizes = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512,
    }  # fmt: skip
    model = prompt_file.parent / "model"
    model.mkdir()
    for content in (sizes | {name: value}, {"model_type": "x", "text_config": sizes | {name: value}}):
        (model / "config.json").write_text(json.dumps(content))
        code, _, error = call(capsys, "plan", "--model", model, "--data", "p.jsonl")
        assert code == 2 and f"{name} = " in error and "allowed: at most" in error and error.count("\n") == 1


@pytest.mark.usefixtures("prompt_file")
@pytest.mark.parametrize("verb", ["new", "plan"])
def test_too_many_gpus_for_a_search_are_an_error_at_once(capsys, verb):
    code, _, error = call(capsys, verb, "--model", "Qwen/Qwen3-8B", "--data", "p.jsonl", "--gpus", "1025")
    assert code == 2 and "allowed: at most 1,024" in error and "adapters" not in error


def test_a_search_in_growing_steps_finds_the_best_split(monkeypatch):
    tried = []

    def simulate(run, inputs, lengths, coarse=False):
        tried.append(run.placement.trainer_ranks)
        rate = 1e6 - 1e3 * abs(run.placement.trainer_ranks - 600)
        return SimpleNamespace(trainer_ranks=tried[-1], slots=480,
                               figures=SimpleNamespace(useful_tokens_per_s=rate, staleness_mean=1.0))  # fmt: skip

    monkeypatch.setattr("scalerl.training.machines.plan.simulate", simulate)
    inputs = SpeedInputs(Assumptions(GPUS["H100"]))
    best, *others = best_split(RunSizes.of(PAPER), inputs, lengths_of(RunSizes.of(PAPER), None), 1000)
    assert abs(best.trainer_ranks - 600) <= 40 and len(set(tried)) <= 10  # strides of 80 GPUs
    rates = [one.figures.useful_tokens_per_s for one in others]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.usefixtures("prompt_file")
def test_a_rehearsal_that_fails_is_one_line(capsys, monkeypatch):
    def fail(config, found):
        raise ProcessDied("the rehearsal (process 7) was killed by signal 9")

    monkeypatch.setattr("scalerl.training.machines.rehearsal.rehearse", fail)
    code, _, error = call(capsys, "plan", "--model", "Qwen/Qwen3-0.6B", "--data", "p.jsonl", "--rehearse")
    assert code == 1 and error == "scalerl: the rehearsal (process 7) was killed by signal 9\n"
