"""What other trainers have of ScaleRL: their configurations, written and read."""

import json
import subprocess
import tomllib

import pytest
import trl
import yaml
from commands import call

from scalerl.reading.trainers import TRAINERS, check, configuration, read_settings, recognized
from scalerl.reading.trainers.check import Values, holds
from scalerl.reading.trainers.data import COMPONENTS
from scalerl.reading.trainers.read import UNRESOLVED
from scalerl.reading.trainers.write import SUFFIXES

NAMES = tuple(TRAINERS)
OLD_NAME = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # TRL passes it on to transformers


def rows_of(name, settings):
    """Return the rows of a table by the key of their component."""
    return dict(zip([c.key for c in COMPONENTS], check(TRAINERS[name], settings), strict=True))


@pytest.fixture
def written(tmp_path):
    """Return a function that writes the nearest configuration of a trainer to a file."""

    def write(name):
        path = tmp_path / f"scalerl.{SUFFIXES[TRAINERS[name].form]}"
        path.write_text(configuration(TRAINERS[name]))
        return path

    return write


@pytest.mark.parametrize("name", NAMES)
def test_the_printed_file_is_read_back_as_the_settings_of_its_trainer(name, written):
    trainer = TRAINERS[name]
    settings = read_settings(written(name))
    assert {s.name: s.value for s in trainer.nearest}.items() <= settings.items()
    assert recognized(TRAINERS.values(), settings)[0] is trainer


@pytest.mark.parametrize("name", NAMES)
def test_the_printed_file_equals_scalerl_in_all_components_but_those_that_the_trainer_lacks(name, written):
    trainer, keys = TRAINERS[name], [component.key for component in COMPONENTS]
    rows = rows_of(name, read_settings(written(name)))
    differing = {key for key, row in rows.items() if row.same is False}
    open_ = {key for key, row in rows.items() if row.same is None}
    assert differing - {"optimizer"} == set(trainer.lacks) - {"optimizer"} and set(trainer.lacks) <= set(keys)
    assert open_ <= {"batch"}  # TRL's depends on the number of GPUs
    if "optimizer" in differing - set(trainer.lacks):
        assert rows["optimizer"].theirs.startswith("lr 5e-7")  # the warm-up has another form there


def test_the_printed_yaml_and_toml_are_those_of_other_readers():
    for name, trainer in TRAINERS.items():
        text = configuration(trainer)
        if trainer.form == "shell":
            shown = f'{text}\nprintf "%s\\n" "${{SCALERL_ARGS[@]}}"'
            words = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout.split()
            assert len(words) >= len(trainer.nearest) and "#" not in words, name
            continue
        tree = tomllib.loads(text) if trainer.form == "toml" else yaml.safe_load(text)
        for setting in trainer.nearest:
            value = tree
            for part in setting.name.split("."):
                value = value[part]
            assert value == setting.value and type(value) is type(setting.value), (name, setting.name)


@OLD_NAME
def test_trl_takes_the_printed_settings_and_keeps_each(written, tmp_path):
    path = written("trl")
    (config,) = trl.TrlParser((trl.GRPOConfig,)).parse_args_and_config(
        ["--config", str(path), "--output_dir", str(tmp_path / "out"), "--use_cpu", "True"]
    )
    assert TRAINERS["trl"].checked == trl.__version__
    for setting in TRAINERS["trl"].nearest:
        assert getattr(config, setting.name) == setting.value, setting.name
    assert config.generation_batch_size == 768 and config.steps_per_generation == 48


@OLD_NAME
def test_the_defaults_of_trl_are_those_of_its_class(tmp_path):
    config = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    for setting in TRAINERS["trl"].settings.values():
        if setting.default is not None:
            assert getattr(config, setting.name) == setting.default, setting.name
    assert config.epsilon_high is None


VERL = """
actor_rollout_ref:
  actor:
    clip_ratio_low: 0.2
    clip_ratio_high: 0.28
    loss_agg_mode: token-mean
    use_kl_loss: true
    kl_loss_coef: 0.001
    ppo_mini_batch_size: 64
    policy_loss: {loss_mode: vanilla}
    optim: {lr: 1e-6, lr_warmup_steps: 10}
  rollout: {n: 16}
algorithm: {adv_estimator: grpo, filter_groups: {enable: true}}
data: {train_batch_size: 512, max_response_length: 14336}
"""

PRIME = """
[orchestrator]
batch_size = 2048
max_off_policy_steps = 4
[orchestrator.algo]
type = "grpo"
[[orchestrator.train.source]]
name = "math"
group_size = 8
[trainer.loss]
kl_tau = 0.0
[inference]
enable_fp32_lm_head = false
"""

SLIME = """#!/bin/bash
# --advantage-estimator gspo
BATCH=128
GRPO_ARGS=(
   --advantage-estimator grpo   # a comment
   #--eps-clip 0.1
   --eps-clip 0.2
   --eps-clip-high 0.28
   --use-kl-loss
   --kl-loss-coef 0.01
)
python train.py --rollout-batch-size ${BATCH} --n-samples-per-prompt 16 --global-batch-size $((BATCH * 4)) \\
   --rollout-max-response-len 14336 "${GRPO_ARGS[@]}"
"""

OPEN_INSTRUCT = """python mason.py -- python open_instruct/grpo_fast.py \\
    --beta 0.0 --num_unique_prompts_rollout 48 --num_samples_per_prompt_rollout 16 \\
    --no_resampling_pass_rate 0.875 --async_steps 4 --inflight_updates True --active_sampling \\
    --advantage_normalization_type standard --response_length 32768 --loss_fn=cispo --clip_higher 4.0
"""

FILES = [
    ("verl", "a.yaml", VERL, {
        "loss": ("DAPO's clip, 0.2 and 0.28", "ceiling, speed"), "aggregation": ("equal weight per token", "ceiling"),
        "zero_variance": ("replaced: dynamic sampling", "-"), "off_policy": ("8 updates per generation", "speed"),
        "kl": ("coefficient 0.001", "-"), "batch": ("1,024", "-"), "tokens": ("14,336", "-"),
        "advantage": ("divided by the group's deviation", "neither"),
        "optimizer": ("lr 1e-6, eps 1e-8, 10 steps of warm-up", "-"),
    }),
    ("prime-rl", "a.toml", PRIME, {
        "off_policy": ("asynchronous, at most 4 updates old", "neither"), "fp32_head": ("off", "ceiling"),
        "generations": ("8", "ceiling"), "batch": ("2,048", "ceiling, speed"), "kl": ("none", "-"),
        "loss": ("DPPO, mask at 0.2 and 0.2 (default)", "-"), "zero_variance": ("dropped, not replaced (default)", "-"),
    }),
    ("slime", "a.sh", SLIME, {
        "loss": ("DAPO's clip, 0.2 and 0.28", "ceiling, speed"), "kl": ("coefficient 0.01", "-"),
        "generations": ("16", "-"), "batch": ("--global-batch-size is computed by the script", "-"),
        "aggregation": ("equal weight per completion (default)", "ceiling"),
    }),
    ("open-instruct", "a.sh", OPEN_INSTRUCT, {
        "resampling": ("not drawn again from 0.875", "-"), "off_policy": ("asynchronous, 4 batches ahead", "neither"),
        "zero_variance": ("replaced: active sampling", "-"), "tokens": ("32,768", "ceiling, speed"),
        "loss": ("CISPO, ratio capped at 5", "-"), "advantage": ("divided by the group's deviation", "neither"),
    }),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "text", "expected"), FILES, ids=[name for name, *_ in FILES])
def test_a_configuration_in_its_own_form_gives_the_table(name, file, text, expected, tmp_path, capsys):
    path = tmp_path / file
    path.write_text(text)
    settings = read_settings(path)
    assert recognized(TRAINERS.values(), settings)[0].name == name
    rows = rows_of(name, settings)
    assert {key: (rows[key].theirs, rows[key].moved) for key in expected} == expected
    code, out, _ = call(capsys, "recipes", "--check", path)
    assert code == 0 and TRAINERS[name].title in out and TRAINERS[name].checked in out
    assert max(map(len, out.splitlines()[1:-2])) <= 120 and out.count("\n") > 20


def test_verls_bypass_mode_replaces_the_loss_that_the_file_has():
    """With it, verl 0.9.1 sets loss_mode to the clipped surrogate, whatever the file says."""
    settings = {"actor_rollout_ref.actor.policy_loss.loss_mode": "cispo"}
    assert rows_of("verl", settings)["loss"].theirs.startswith("CISPO")
    settings["algorithm.rollout_correction.bypass_mode"] = True
    assert rows_of("verl", settings)["loss"].theirs == "GRPO's clip, 0.2 and 0.2"


def test_the_sources_of_a_file_may_have_their_own_settings(tmp_path):
    sources, theirs = "group_size = 16\n[[orchestrator.train.source]]\ngroup_size = 8", "8 and 16"
    (tmp_path / "a.toml").write_text(f"[orchestrator]\ngroup_size = 32\n[[orchestrator.train.source]]\n{sources}")
    settings = read_settings(tmp_path / "a.toml")
    assert rows_of("prime-rl", settings)["generations"].theirs == theirs
    pooled = {"orchestrator.train.source": [{"name": "math", "sampler": "difficulty_pools"}]}
    assert rows_of("prime-rl", settings)["resampling"].moved == "ceiling"
    assert rows_of("prime-rl", pooled)["resampling"].theirs.startswith("drawn with another weight")


def test_the_cap_of_cispo_is_absolute_in_trl_and_an_offset_from_one_elsewhere():
    caps = [
        ("trl", {"loss_type": "cispo", "epsilon_high": 4}, "4"),
        ("open-instruct", {"loss_fn": "cispo", "clip_higher": 4}, "5"),
        ("skyrl", {"trainer.algorithm.policy_loss_type": "cispo"}, "6 and not below 1"),
        ("slime", {"--advantage-estimator": "cispo", "--eps-clip": 0.2}, "1.2 and not below 0.8"),
        ("nemo-rl", {"loss_fn.use_cispo": True, "loss_fn.ratio_clip_max": 7.0}, "8 and not below 0.8"),
    ]
    for name, settings, cap in caps:
        assert rows_of(name, settings)["loss"].theirs == f"CISPO, ratio capped at {cap}", name


@pytest.mark.parametrize("name", NAMES)
def test_every_case_of_a_trainers_file_refers_to_its_settings_and_to_kinds_of_the_component(name):
    trainer = TRAINERS[name]
    values = Values(trainer, {})
    assert list(trainer.components) == [component.key for component in COMPONENTS]
    for component in COMPONENTS:
        cases = trainer.components[component.key]
        assert [case for case in cases if "if" not in case] == cases[-1:], component.key  # the last one always applies
        for case in cases:
            kind = component.kinds[case["is"]] if "is" in case else case
            for one in (case, kind, *kind.get("cases", ())):
                for text in one.get("if", {}):
                    values.quantity(text, case)
                values.rendered(one.get("words", ""), case)
            assert "words" in case or "words" in kind


def test_a_name_that_several_settings_end_with_is_an_error_of_the_file():
    assert TRAINERS["prime-rl"].setting("optim.lr").name == "trainer.optim.lr"
    with pytest.raises(KeyError, match="got 'seq_len', the end of 2 names"):
        TRAINERS["prime-rl"].setting("seq_len")
    with pytest.raises(KeyError, match="the end of 0 names"):
        TRAINERS["trl"].setting("learningrate")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ppo_mini_batch_size", "64"),  # one name: as it is
        ("train_batch_size // ppo_mini_batch_size * ppo_epochs", 21.0),  # 500 // 64 = 7 updates in each of 3 rounds
        ("ppo_mini_batch_size min train_batch_size * rollout.n", 64.0),
        ("staleness_threshold or ppo_epochs + 1", 4.0),
        ("1 // use_kl_loss", None),
        ("1 // entropy_coeff", None),
        ("n * 2", 10.0),
    ],
)
def test_a_quantity_is_computed_from_left_to_right_and_missing_with_any_of_its_parts(text, value):
    actor = "actor_rollout_ref.actor."
    settings = {"data.train_batch_size": 500, f"{actor}ppo_mini_batch_size": "64", f"{actor}ppo_epochs": 3}
    settings[f"{actor}entropy_coeff"] = 0
    assert Values(TRAINERS["verl"], settings).quantity(text, {"n": "ppo_epochs + 2"}) == value


@pytest.mark.parametrize(
    ("value", "yes", "no"),
    [
        ("False", [False, "false", ["no", "false"]], [True, 0, "> 0"]),
        ("0.0", [False, 0, "< 1", "0 to 1"], [True, "missing"]),
        (0.9, [True, 0.9, [1, 0.9], "> 0", "0.9 to 2"], [False, "< 0.9", "> 0.9", "missing"]),
        (True, [True, "true", "missing"], [False, 1]),
        (10**400, [True, "missing"], [0, "> 1"]),
        (None, [False, "missing"], [True, 0, "> -1", "< 1", "-1 to 1"]),
        (" CISPO ", [True, "cispo", "has ISP"], ["has isp", "clip"]),
    ],
)
def test_a_condition_compares_flags_numbers_ranges_and_words(value, yes, no):
    assert [holds(value, wanted) for wanted in yes] == [True] * len(yes)
    assert [holds(value, wanted) for wanted in no] == [False] * len(no)


@pytest.mark.parametrize(
    ("name", "content", "words", "match"),
    [
        ("a.json", "", [], "empty"),
        ("a.json", "{", [], "cannot be read as json"),
        ("a.yaml", "a: !!python/object/apply:os.system [ls]", [], "cannot be read as yaml"),
        ("a.ini", "a = 1", [], "ending '.ini'; allowed: .json"),
        ("training_args.bin", b"\x80\x04rest", [], "to_json_string"),
        ("a.yaml", b"\xff\xfe\x00", [], "not UTF-8"),
        ("a.json", '{"learning_rate": 1e-5, "seed": 1}', [], "without settings of trl, verl"),
        ("a.yaml", VERL, ["--for", "trl"], "without settings of trl, but of verl"),
    ],
)
def test_a_file_that_is_no_configuration_is_one_line(name, content, words, match, tmp_path, capsys):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, text = call(capsys, "recipes", "--check", path, *words)
    assert code == 2 and out == "" and text.count("\n") == 1 and match in text and str(path) in text


def merged(count):
    """Return YAML whose merge keys double the entries at every line."""
    return "m0: &m0 {x: 1}\n" + "".join(
        f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}], k{n}: 1}}\n" for n in range(1, count)
    )


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.yaml", merged(60), "more than 100,000 values"),
        ("a.yaml", "a: &a\n  b: *a\n", "one that contains itself"),
        ("a.yaml", "a: " + "1:" * 20_000 + "1", "a number or date of 40,001 characters"),
        ("a.yaml", "a: [1, {b: 0x" + "f" * 5_000 + "}]", "a whole number of 20,000 bits"),
        ("a.json", '{"' + "n" * 100_000 + '": {"a": 1, "b": 2}}', "a name of 100,000 characters"),
        ("a.yaml", "a: &a {b: &b {c: 1}}\nd: *a\ne: *b", "without settings of trl"),  # aliases as people use them
    ],
)
def test_a_configuration_that_would_grow_without_limit_is_one_line(name, content, match, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(content)
    code, out, text = call(capsys, "recipes", "--check", path)
    assert code == 2 and out == "" and text.count("\n") == 1 and match in text and len(text) < 500


def test_a_sparse_file_of_five_gigabytes_is_not_read(tmp_path, capsys):
    name = "a.yaml"
    with (tmp_path / name).open("wb") as file:
        file.truncate(5 << 30)
    code, _, text = call(capsys, "recipes", "--check", tmp_path / name)
    assert code == 2 and "got 5,368,709,120 bytes; allowed: at most 262,144" in text


def test_a_variable_of_a_script_that_doubles_is_not_replaced(tmp_path):
    lines = ["V0=xx", *(f"V{n}=$V{n - 1}$V{n - 1}" for n in range(1, 60)), "train --eps-clip 0.2 --lr $V59 --n $V3"]
    (tmp_path / "a.sh").write_text("\n".join(lines))
    assert read_settings(tmp_path / "a.sh") == {"--eps-clip": 0.2, "--lr": UNRESOLVED, "--n": "xx" * 8}


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--for", "prime_rl"], ""),
        (["--for", "verrl"], "did you mean 'verl'?"),
        (["--for", "ray"], "allowed: trl, verl, prime-rl, skyrl, open-instruct, nemo-rl, slime"),
        (["--check", "nowhere.yaml"], "nowhere.yaml"),
        (["--json"], "--for or --check"),
    ],
)
def test_trainers_are_found_by_any_spelling_and_unknown_ones_get_a_suggestion(words, match, capsys):
    code, out, text = call(capsys, "recipes", *words)
    assert (code == 0 and out) if not match else (code == 2 and match in text and text.count("\n") == 1)


def test_an_installed_version_that_was_not_checked_is_said(tmp_path, capsys, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text('{"loss_type": "dapo", "num_generations": 8}')
    monkeypatch.setattr("scalerl.cli.recipes.version", lambda package: "2.0.0")
    assert "2.0.0 is installed here and was not checked" in call(capsys, "recipes", "--check", path)[1]
    assert json.loads(call(capsys, "recipes", "--for", "trl", "--json")[1])["installed_version"] == "2.0.0"
    checked = json.loads(call(capsys, "recipes", "--check", path, "--json")[1])
    assert checked["trainer"] == "trl" and len(checked["components"]) == len(COMPONENTS)


def test_a_script_is_read_and_not_run(tmp_path):
    path = tmp_path / "a.sh"
    mark = tmp_path / "ran"
    path.write_text(
        f'touch {mark}\nX=$(touch {mark})\npython t.py --eps-clip $X --lr "$(touch {mark})" --n-samples-per-prompt 4'
    )
    assert read_settings(path) == {"--eps-clip": UNRESOLVED, "--lr": UNRESOLVED, "--n-samples-per-prompt": 4}
    assert not mark.exists()
