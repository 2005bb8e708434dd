"""Code in a configuration runs only if the user has named or confirmed it."""

import io
import json
import os
import stat
import sys
import textwrap
import warnings

import pytest
from commands import call
from hypothesis import given
from hypothesis import strategies as st

from robustness.campaign import Case, check_here
from scalerl.core import files
from scalerl.core.errors import ConfigError
from scalerl.training.config import parse_config, read_config, to_toml, trust
from scalerl.training.config.trust import check_trust
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.plan import read_plan

BASE = '[model]\nkind = "hf"\npath = "m"\n'
DATA = '[data]\nkind = "file"\npath = "p.jsonl"\n'


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A directory with someone else's code, which writes a file if it runs, and a separate cache."""
    here = tmp_path / "here"
    (here / "pack/inner").mkdir(parents=True)
    told = "open('ran.txt', 'w')\ndef f(*given, **named): return []\n"
    for name in ("theirs.py", "pack/__init__.py", "pack/inner/__init__.py", "pack/inner/code.py"):
        (here / name).write_text(told)
    monkeypatch.chdir(here)
    monkeypatch.setenv("SCALERL_CACHE", str(tmp_path / "cache"))
    yield here
    assert not (here / "ran.txt").exists()


def config(text, data=DATA):
    return parse_config(BASE + data + text, "here")


REWARD = DATA + 'reward = "theirs:f"\n'
NAMED = [
    ("reward", "", REWARD, "data.reward = theirs:f ({here}/theirs.py)"),
    ("task", "", '[data]\nkind = "custom"\nfunction = "theirs:f"\n', "data.function = theirs:f ({here}/theirs.py)"),
    ("environment", "", '[data]\nkind = "verifiers"\nenvironment = "me/theirs"\n',
     "data.environment = me/theirs ({here}/theirs.py)"),
    *((part, f'[recipe.{part}]\nkind = "custom"\nfunction = "theirs:f"\n', DATA, f"recipe.{part} = theirs:f (")
      for part in ("loss", "advantage", "aggregation")),
    ("engine", '[placement.engine]\nkind = "custom"\nfunction = "theirs:f"\n', DATA, "placement.engine = theirs:f ("),
    ("a module in a package", "", DATA + 'reward = "pack.inner.code:f"\n', "({here}/pack/inner/code.py)"),
    ("a module of Python", "", DATA + 'reward = "os:system"\n', "data.reward = os:system"),
    ("a module that is not there", "", DATA + 'reward = "no_such_module:f"\n', "data.reward = no_such_module:f"),
    ("arguments of vLLM", '[placement]\nengine = "vllm"\nvllm_arguments = ["--trust-remote-code"]\n', DATA,
     'placement.vllm_arguments = ["--trust-remote-code"]'),
    ("a Python of vLLM", '[placement]\nengine = "vllm"\nvllm_python = "/bin/sh"\n', DATA, "placement.vllm_python = "),
    ("a Python of the sandbox", '[scoring.sandbox]\npython = "/bin/sh"\n', DATA, "scoring.sandbox.python = /bin/sh ("),
    ("no sandbox", '[scoring.sandbox]\nmode = "unsafe"\n', DATA, "scoring.sandbox.mode = unsafe"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "data", "expected"), NAMED, ids=[name for name, *_ in NAMED])
def test_code_of_a_configuration_is_refused_until_it_is_confirmed_once(place, name, text, data, expected):
    chosen = config(text, data)
    with pytest.raises(ConfigError) as caught:
        check_trust([chosen], "run-of-a-stranger")
    message = str(caught.value)
    assert message.startswith("run-of-a-stranger runs code or sends data to an address that was not confirmed")
    assert expected.format(here=place) in message and "give --trust" in message and len(message) < 1000
    check_trust([chosen], "mine", trusted=True)
    if name in ("a module of Python", "a module that is not there"):  # no file, whose content could be remembered
        with pytest.raises(ConfigError, match="was not confirmed"):
            check_trust([chosen], "mine")
    else:
        check_trust([parse_config(to_toml(chosen), "again")], "mine")


JUDGED = 'task = "judge"\n'
SENT = [
    ('[[loggers]]\nkind = "wandb"\n', "loggers.wandb = wandb"),
    ('[placement]\nengine = "vllm"\nservers = ["http://x.test:1/?key=1"]\n', "servers = http://x.test:1/?key=1"),
    ('[placement]\nbackend = "ray"\nray_address = "x.test:1"\n', "placement.ray_address = x.test:1"),
    (JUDGED + '[scoring.judge]\nurl = "http://x.test:1/v1"\n', "scoring.judge.url = http://x.test:1/v1"),
    (JUDGED + '[scoring.judge]\nkey_variable = "OTHER_SECRET"\n', "scoring.judge.key_variable = OTHER_SECRET"),
]


@pytest.mark.parametrize(("text", "expected"), SENT, ids=[expected for _, expected in SENT])
def test_an_address_that_gets_data_must_be_typed_or_confirmed_once(text, expected):
    chosen, address = config(text), expected.partition(" = ")[2]
    with pytest.raises(ConfigError) as caught:
        check_trust([chosen], "run-of-a-stranger", typed=["--steps", "3", "--seed=x.test", address + "/more"])
    message = str(caught.value)
    assert "was not confirmed" in message and expected in message
    check_trust([chosen], "mine", typed=["train", "--any.field", f'["{address}"]'])
    check_trust([parse_config(to_toml(chosen), "again")], "mine")  # remembered, but not its secret
    assert "key=1" not in (files.cache_root() / "trusted.json").read_text()


def test_loggers_of_this_machine_need_no_confirmation():
    check_trust([config('[[loggers]]\nkind = "tensorboard"\n[[loggers]]\nkind = "mlflow"\n')], "run-of-a-stranger")
    with pytest.raises(ConfigError, match=r"data\.reward = theirs:f .*; loggers\.wandb"):
        check_trust([config(SENT[0][0], REWARD)], "run-of-a-stranger")


def test_code_in_a_changed_file_and_another_function_need_a_new_confirmation(place):
    check_trust([config("", REWARD)], "mine", trusted=True)
    with pytest.raises(ConfigError, match="theirs:g"):
        check_trust([config("", REWARD.replace("theirs:f", "theirs:g"))], "mine")
    (place / "theirs.py").write_text("open('ran.txt', 'w')  # changed\n")
    with pytest.raises(ConfigError, match="has changed"):
        check_trust([config("", REWARD)], "mine")
    chosen = config("", DATA + 'reward = "pack.inner.code:f"\n')
    check_trust([chosen], "mine", trusted=True)
    (place / "pack/__init__.py").write_text("open('ran.txt', 'w')  # changed\n")
    with pytest.raises(ConfigError, match=r"pack\.inner\.code:f"):
        check_trust([chosen], "mine")


def test_a_full_name_on_the_command_line_is_trusted_and_remembered():
    for typed in (["--steps", "3"], ["--reward", "not_theirs:f"]):
        with pytest.raises(ConfigError, match="theirs:f"):
            check_trust([config("", REWARD)], "run", typed=typed)
    for typed in (["--reward", "theirs:f"], ["--data.reward=theirs:f"], []):
        check_trust([config("", REWARD)], "run", typed=typed)


def test_another_model_without_a_sandbox_needs_a_new_confirmation():
    bare = '[scoring.sandbox]\nmode = "unsafe"\n'
    check_trust([config(bare)], "mine", trusted=True)
    with pytest.raises(ConfigError, match=r"scoring\.sandbox\.mode = unsafe"):
        check_trust([parse_config(BASE.replace('"m"', '"other"') + DATA + bare, "here")], "theirs")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "goes_on"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_the_question_appears_once_on_a_terminal(monkeypatch, answer, goes_on):
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", shown)
    if not goes_on:
        with pytest.raises(ConfigError, match="nothing was run"):
            check_trust([config("", REWARD)], "run")
        return
    check_trust([config("", REWARD)], "run")
    assert "theirs.py" in shown.getvalue() and shown.getvalue().endswith("Run it? [y/N] ")
    check_trust([config("", REWARD)], "run")
    assert shown.getvalue().count("Run it?") == 1


def test_the_arms_of_a_study_are_confirmed_together(place):
    (place / "plan.toml").write_text(
        'base = "quick"\n[arms.a]\n[arms.b.recipe.loss]\nkind = "custom"\nfunction = "theirs:f"\n'
        '[arms.c.recipe.advantage]\nkind = "custom"\nfunction = "pack.inner.code:f"\n'
    )
    plan = read_plan(place / "plan.toml")
    with pytest.raises(ConfigError, match=r"theirs:f.*pack"):
        check_trust([plan.config(arm, 0) for arm in plan.arms], "plan.toml")


@pytest.mark.parametrize("words", [["resume", "study"], ["plan.toml", "-o", "study"]], ids=["resume", "again"])
def test_the_saved_configurations_of_a_study_are_confirmed_too(place, capsys, words):
    """A resume of a run uses its own configuration, which may differ from the plan."""
    (place / "plan.toml").write_text('base = "quick"\n[arms.a]\n[arms.b.recipe]\ntemperature = 0.9\n')
    study = StudyDirectory.create(place / "study", read_plan(place / "plan.toml"))
    run = study.run(study.plan.runs()[0])
    run.mkdir(parents=True)
    (run / "config.toml").write_text(to_toml(config("", REWARD)))
    code, _, error = call(capsys, "study", *words)
    assert code == 2 and "a run in study runs code" in error and "data.reward = theirs:f" in error


def model(here):
    """Write someone else's run directory, whose model is only read."""
    run = here / "run"
    (run / "model").mkdir(parents=True)
    (here / "p.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    (here / "theirs.py").write_text("open('ran.txt', 'w')\n")
    (here / "theirs.toml").write_text(textwrap.dedent('[data]\nkind = "arithmetic"\n[recipe.loss]\n'
                                                      'kind = "custom"\nfunction = "theirs:f"\n'))  # fmt: skip
    (here / "plan.toml").write_text('base = "quick"\n[arms.a]\n[arms.b.recipe.loss]\nkind = "custom"\n'
                                    'function = "theirs:f"\n')  # fmt: skip
    (run / "config.toml").write_text(to_toml(read_config(here / "theirs.toml", [])))


ASKED = (
    Case("trust: resume", ("resume", "run"), model, expect=("run runs code or sends", "theirs:f", "--trust")),
    Case("trust: train CONFIG", ("train", "theirs.toml"), model, expect=("theirs.toml runs code", "theirs.py")),
    Case("trust: doctor CONFIG", ("doctor", "theirs.toml"), model, expect=("theirs.toml runs code", "--trust")),
    Case("trust: a saved configuration", ("train", "run/config.toml"), model, expect="recipe.loss = theirs:f"),
    Case("trust: study", ("study", "plan.toml", "--seeds", "1"), model, expect="plan.toml runs code"),
    Case("trust: a dry run imports nothing", ("train", "theirs.toml", "--dry-run"), model, allowed=(0,)),
)


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_a_directory_of_a_stranger_is_refused_without_running_its_code(case, tmp_path, monkeypatch):
    (tmp_path / "stranger").mkdir()
    check_here(case, tmp_path / "stranger", monkeypatch)
    assert not (tmp_path / "stranger/ran.txt").exists()


@given(st.text(max_size=300))
def test_any_name_becomes_a_file_in_its_directory(name):
    made = files.safe_name(name)
    assert made not in ("", ".", "..") and "/" not in made and "\0" not in made and len(made.encode()) <= 107
    assert os.path.basename(made) == made and files.safe_name(made) == made


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_are_created_with_the_umask_of_the_user(place, mask):
    import torch
    from tiny_models import tiny_model

    from scalerl.training.engines.directory import DirectoryChannel
    from scalerl.training.learner.checkpoint import save_state
    from scalerl.training.models.policy import Policy

    before = os.umask(mask)
    try:
        files.write_whole(place / "text", "x")
        check_trust([config("", REWARD)], "run", trusted=True)
        Policy(tiny_model("qwen3")).export(place / "model")
        save_state(place, "state", {"a": torch.ones(2)})
        DirectoryChannel(place / "weights", 2).send(0, [("a", torch.ones(2))])
    finally:
        os.umask(before)
    made = [place / "text", place / "state.json", place / "state.safetensors", trust._store()]
    made += [*(place / "model").iterdir(), *(place / "weights").iterdir()]
    assert len(made) >= 7
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o666 & ~mask}
    assert json.loads(trust._store().read_text())["code"]


def sharded(path):
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    tensors = {"a": torch.arange(12.0).view(4, 3), "step": torch.tensor(3), "half": torch.ones(2, dtype=torch.bfloat16)}
    with warnings.catch_warnings(action="ignore"):  # torch warns that it saves in one process
        save(tensors, storage_writer=FileSystemWriter(path / "learner"), no_dist=True)
    return tensors


def test_metadata_of_a_checkpoint_of_ranks_is_read_like_torch_does(place):
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    from scalerl.training.learner.sharded_checkpoint import PlainReader, stored_tensors

    sharded(place)
    ours, theirs = (reader(place / "learner").read_metadata() for reader in (PlainReader, FileSystemReader))
    assert ours.state_dict_metadata == theirs.state_dict_metadata and ours.storage_data == theirs.storage_data
    sizes = {key: tuple(entry.size) for key, entry in stored_tensors(place).items()}
    assert sizes == {"a": (4, 3), "step": (), "half": (2,)}


@pytest.mark.parametrize(
    "written",
    [
        b"cbuiltins\nexec\n(S\"open('ran.txt', 'w')\"\ntR.",
        b"\x80\x04\x8c\x05torch\x8c\x0bSize.__new__\x93.",  # a dotted name can reach any attribute of a class
        b"\x80\x04\x8c\x05torch\x8c\x04load\x93.",
        b"",
        b"\0" * 64,
    ],
)
def test_a_checkpoint_of_ranks_with_code_in_its_metadata_is_refused(place, written):
    from scalerl.training.learner.sharded_checkpoint import stored_tensors

    sharded(place)
    (place / "learner/.metadata").write_bytes(written)
    with pytest.raises(ConfigError, match="is not the metadata of a checkpoint"):
        stored_tensors(place)
