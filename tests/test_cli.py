"""The command line: every user error is one message with exit code 2; nothing is overwritten."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import runs
from commands import call
from safetensors import SafetensorError
from tiny_models import tiny_model

from scalerl.cli.main import COMMANDS
from scalerl.core import errors
from scalerl.training.config import LAB, PRESETS
from scalerl.training.loop.run_info import run_info

POINTS = [(0, 0.20), (100, 0.31), (200, 0.42), (400, 0.51), (800, 0.56), (1600, 0.585), (3200, 0.595)]


def raising(error):
    def function(*args, **options):
        raise error

    return function


def complain(capsys, *words):
    code, _, error = call(capsys, *words)
    assert code == 2 and error.startswith("scalerl: ") and "Traceback" not in error
    return error


@pytest.fixture
def points(tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_text("".join(json.dumps({"flops": c, "pass_rate": r, "task": "t"}) + "\n" for c, r in POINTS))
    return path


def test_help_imports_no_heavy_modules():
    code = (
        "import sys, time; from scalerl.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'scipy', 'matplotlib', 'pydantic', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_help_on_fields_fits_80_columns_and_has_allowed_values_and_the_defaults_of_the_command(capsys):
    _, everything, _ = call(capsys, "train", "--help", "all")
    _, first, _ = call(capsys, "train", "--help")
    assert max(map(len, (everything + first).splitlines())) <= 80 and "Undefined" not in everything
    assert all(name in first for name in PRESETS) and len(first.splitlines()) < 70
    assert "--recipe.aggregation prompt|sample|token|custom  [prompt]" in everything
    assert "--placement.engine torch|vllm|custom  [torch]" in everything
    for words, prompts in (
        (["--preset", "scalerl"], 48),
        (["--model", "m", "--data", "p.jsonl", "--device", "cuda"], 16),
    ):
        _, recipe, _ = call(capsys, "train", *words, "--help", "recipe")
        assert f"--recipe.prompts_per_step N  [{prompts}]" in recipe and "--placement" not in recipe
    assert "did you mean 'recipe.loss'" in complain(capsys, "train", "--help", "recipe.los")


LONG = """
import sys
from scalerl.cli.exits import guarded, prepare_streams
prepare_streams(outlived=True)
for i in range(100_000): print(i, "\xb1 2")
print("done", file=open("file", "w"))
"""


@pytest.mark.parametrize("redirect", ["<&- >&- 2>&-", "2>&1 | head -1"])
def test_a_command_that_saves_results_outlives_its_output(redirect, tmp_path):
    shell = f'set -o pipefail; "$@" {redirect}'
    words = ["bash", "-c", shell, "-", sys.executable, "-c", LONG]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert done.returncode == 0 and done.stderr == b"" and (tmp_path / "file").read_text() == "done\n"


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
"""Variables with which Python takes ASCII for the terminal, and an error handler that fails for most characters."""
SHOWN = r"""
from scalerl.api import _complete
try: _complete(None, None, True)  # a call from Python, which fails for want of a configuration
except AttributeError: print("0.5 \\xb1 0.1")
"""


@pytest.mark.slow
def test_a_run_prints_to_a_terminal_of_ascii():
    environment = {**os.environ, **ASCII}
    done = subprocess.run([sys.executable, "-c", SHOWN], env=environment, capture_output=True, timeout=60)
    assert done.stdout == b"0.5 \\xb1 0.1\n", done.stderr


def test_a_directory_name_that_is_not_utf8_is_no_obstacle(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = os.fsdecode(b"r\xff")
    os.mkdir(run)
    rows = [{"step": n, "flops": 1e12 * n, "pass_rate": 0.2 + 0.5 * n**2 / (n**2 + 9) + 0.003 * (-1) ** n,
             "task": "arithmetic"} for n in range(12)]  # fmt: skip
    (Path(run) / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (Path(run) / "run.json").write_text(run_info(LAB).to_json())
    for words in (["fit"], ["forecast"], ["ls"], ["fit", "--json"]):
        assert call(capsys, *words, run)[0] == 0, words
    code, out, _ = call(capsys, "report", run, "-o", os.fsdecode(b"page\xff.html"))
    assert code == 0 and r"r\udcff" in out
    page = Path(os.fsdecode(b"page\xff.html")).read_text(encoding="utf-8")
    assert r"r\udcff" in page and "</html>" in page


def test_a_removed_directory_is_one_line(tmp_path):
    shell = 'mkdir gone && cd gone && rmdir ../gone && "$@"'
    command = ["bash", "-c", shell, "-", *runs.command("train")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode in (1, 2) and done.stderr.startswith("scalerl: ") and done.stderr.count("\n") == 1


def test_a_dry_run_prints_the_configuration_and_the_derived_sizes_and_starts_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capsys, "train", "--dry-run", "--steps", 9)
    assert code == 0 and "steps = 9" in out and "= 256 completions" in out and not any(tmp_path.iterdir())


def test_recipes_prints_how_each_recipe_differs_from_the_first_in_80_columns(capsys):
    code, out, _ = call(capsys, "recipes")
    table, _, variants = out.partition("leave one out")
    rows = [line.split() for line in table.splitlines()]
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert [row[-2:] for row in rows if "loss" in row] == [
        ["cispo", name] for name in ("dapo", "dapo", "grpo", "grpo", "dapo")
    ]
    assert ["minimax", "prompts_per_step", "48", "80"] in rows and ["off_policy.max_lag", "8", "-"] in rows
    assert ["fp32", "fp32_head", "True", "False"] in [line.split() for line in variants.splitlines()]
    assert "temperature" not in out  # equal in all recipes


@pytest.mark.parametrize("at", [0, 2, 4])
def test_the_configuration_file_may_stand_at_any_place_among_the_options(at, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text("[recipe]\nname = 'mine'\n")
    words = [["--recipe.loss.max_ratio", "4"], ["--steps=7"], ["--dry-run"], ["--seed", "3"]]
    words.insert(at, ["my.toml"])
    code, out, error = call(capsys, "train", *(word for own in words for word in own))
    assert code == 0, error
    assert 'name = "mine"' in out and "max_ratio = 4.0" in out and "steps = 7\n" in out and "seed = 3\n" in out


@pytest.mark.usefixtures("no_hours")
def test_the_file_of_a_plan_a_study_and_a_doctor_may_come_last(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text("steps = 75\n")
    known = ["--generator-tokens-per-s", "2000", "--trainer-tokens-per-s", "900"]
    code, out, error = call(capsys, "plan", "--updates", "2", *known, "my.toml", "--seed", "3")
    assert code == 0 and "throughput" in out, error
    code, out, error = call(capsys, "study", "--seed", "3", "loo", "my.toml", "--dry-run")
    assert code == 0 and "75 steps" in out, error
    assert "got 'stray'" in complain(capsys, "train", "--seed", "3", "my.toml", "stray")
    assert "got 'my.toml'" in complain(capsys, "new", "my.toml", "--gpus", "0")


@pytest.fixture
def workplace(lab_model, tmp_path, monkeypatch):
    """A directory with a user's model and prompts."""
    shutil.copytree(lab_model, tmp_path / "model")
    rows = [{"prompt": f"{a}+{b}=<think>", "answer": str((a + b) % 10)} for a in range(10) for b in range(6)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


REWARDS = """
calls = 0  # in the process that calls the functions: once per group, including groups of evaluations

def length(prompts, completions, answer, **columns):
    return [float(len(c)) / 30 for c in completions]

def fails_later(prompts, completions, **columns):
    global calls
    calls += 1
    if calls > 16:  # 8 groups of the first evaluation and 8 of two updates
        raise ValueError("the judge is out")
    return [float("=" in c) - 0.5 * (c.count("1") % 2) for c in completions]
"""

OWN = [
    "train", "--model", "model", "--data", "prompts.jsonl", "--run-dir", "run", "--steps", "10",
    "--recipe.prompts_per_step", "4", "--recipe.generations_per_prompt", "4",
    "--recipe.length.thinking_tokens", "[12, 20]",
    "--recipe.length.answer_tokens", "9", "--recipe.length.phrase", "</think>", "--evaluation.prompts", "8",
    "--evaluation.samples", "2", "--evaluation.every", "2", "--checkpoint.every", "50",
    "--data.max_prompt_tokens", "16",
]  # fmt: skip


@pytest.mark.slow
def test_a_reward_function_that_fails_too_often_ends_the_run_with_its_line_and_a_checkpoint(workplace):
    code, text = runs.call(*OWN, "--reward", "my_rewards:fails_later")
    assert code == 1 and "Traceback" not in text, text
    assert "the judge is out" in text and "my_rewards.py:" in text
    steps = len(runs.rows(workplace / "run", "metrics.jsonl"))
    # failures are tolerated for 100 completions
    assert steps >= 2 and (workplace / f"run/checkpoints/step_{steps:06d}").exists()
    mended = (workplace / "my_rewards.py").read_text().replace("calls > 16", "False")
    (workplace / "my_rewards.py").write_text(mended)
    code, text = runs.call("resume", "run", "--trust")  # the code has changed since the run started
    assert code == 0, text  # the interrupted evaluation is repeated
    assert [p["step"] for p in runs.rows(workplace / "run", "points.jsonl")] == [0, 2, 4, 6, 8, 10]


@pytest.mark.slow
def test_a_nonfinite_gradient_stops_the_run_and_saves_the_batch(workplace):
    diverges = ["--recipe.optimizer.learning_rate", "1e30", "--recipe.optimizer.warmup_steps", "0"]
    early = ["--checkpoint.every", "1", "--evaluation.every", "10"]  # an evaluation would find the weights first
    code, text = runs.call(*OWN, "--reward", "my_rewards:length", *diverges, *early)
    assert code == 1 and "Traceback" not in text, text
    assert "The batch is saved in" in text and "the last good checkpoint is" in text
    saved = list((workplace / "run/bad_batch").glob("*.safetensors"))
    assert len(saved) == 1 and list((workplace / "run/checkpoints").glob("step_*"))


@pytest.mark.slow
def test_a_run_with_all_prompts_retired_finishes_with_its_forecast(workplace):
    code, text = runs.call(*OWN, "--reward", "my_rewards:length", "--data.pass_reward", "0", "--steps", "200")
    assert code == 0, text
    steps = len(runs.rows(workplace / "run", "metrics.jsonl"))
    # 52 prompts, 4 per step: at least 13 updates, and more visits to prompts with a truncated rollout, which failed
    assert 13 <= steps < 200 and f"every prompt is solved and retired; trained {steps} updates" in text
    assert runs.rows(workplace / "run", "points.jsonl")[-1]["step"] == steps and "\nat 2x     " in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "narrow"], "16 embeddings"),
        (["--recipe.length.thinking_tokens", "[400, 600]"], "512"),
        (["--evaluation.prompts", "60"], "at most 56"),
        (["--data.max_prompt_tokens", "3"], "data.max_prompt_tokens"),
    ],
)
def test_errors_in_data_and_model_are_reported_before_a_directory_is_made(capsys, workplace, words, message):
    tiny_model("llama", vocab_size=16).save_pretrained("narrow")
    for file in (workplace / "model").glob("tokenizer*"):
        shutil.copy(file, "narrow")
    capsys.readouterr()  # transformers shows a bar while it writes
    assert message in complain(capsys, *OWN, *words)
    assert not (workplace / "run").exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device", "run/metrics.jsonl"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_reported_in_one_line(capsys, monkeypatch, points, error):
    monkeypatch.setattr("scalerl.reading.curves.Curve.of_table", raising(error))
    code, _, out = call(capsys, "fit", points)
    assert code == 1 and "no space left on the disk" in out and out.count("\n") == 1


@pytest.mark.parametrize(("words", "megabytes"), [(["train"], 300), (["doctor"], 800)])
def test_a_limit_of_memory_below_what_torch_takes_is_one_line(tmp_path, words, megabytes):
    def limit():  # as `ulimit -v`; torch's libraries would abort the process
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    done = subprocess.run(runs.command(*words), capture_output=True, text=True, cwd=tmp_path, preexec_fn=limit)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not done.stdout, done.stderr
    assert "ulimit -v" in done.stderr and "at least 1.0 GB" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory"), OSError(12, "Cannot allocate memory")],
)
def test_a_lack_of_memory_is_one_line_with_the_limit_in_every_command(error, capsys, monkeypatch):
    monkeypatch.setattr("scalerl.cli.recipes.print_recipes", raising(error))
    code, _, text = call(capsys, "recipes")
    assert code == 1 and text.startswith("scalerl: out of memory: it had taken ") and text.count("\n") == 1
    with pytest.raises(type(error)), errors.raising(errors.ConfigError, lambda error: "a damaged file"):
        raise error


def test_an_error_of_the_program_keeps_its_traceback(capsys, monkeypatch):
    for error in (RuntimeError("a bug"), ImportError("cannot import name 'x'"), OSError("no number")):
        monkeypatch.setattr("scalerl.cli.recipes.print_recipes", raising(error))
        with pytest.raises(type(error)):
            call(capsys, "recipes")


@pytest.mark.parametrize("name", ["fit", "report", "train"])
def test_a_command_loads_its_own_module_and_its_help_has_its_options(name):
    code = (
        f"import sys; from scalerl.cli import main\n"
        f"try: main([{name!r}, '--help'])\nexcept SystemExit: pass\n"
        "print(*[module for module in sys.modules if module.startswith('scalerl.cli.')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {module.removeprefix("scalerl.cli.") for module in done.stderr.split()}
    shared = {"main", "exits", "options", "terminal"}
    helpers = {"report": {"curves"}, "train": {"fields"}}
    assert loaded - shared == {COMMANDS[name].module} | helpers.get(name, set())
    assert f"usage: scalerl {name}" in done.stdout


def test_a_dash_is_standard_input(tmp_path):
    log = Path(__file__).parents[1] / "examples/trl_log/trainer_state.json"
    shutil.copy(log, tmp_path / "standard-input")

    def printed(path):
        command = [sys.executable, "-m", "scalerl.cli", "fit", path, "--devices", "8"]
        done = subprocess.run(command, input=log.read_bytes(), capture_output=True, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr
        return re.sub(rb"\S*/standard-input", b"standard-input", done.stdout)

    assert printed("-") == printed("standard-input") != b""


def test_a_disk_without_room_for_the_checkpoints_is_an_error_before_the_start(capsys, workplace, monkeypatch):
    """Nothing remains in the run directory."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, (1 << 40) - 1000, 1000))
    assert call(capsys, *OWN, "--checkpoint.every", "1")[0] == 2
    text = complain(capsys, *OWN, "--checkpoint.every", "1", "--checkpoint.keep", "5")
    assert ": 0 MB are free; 6 checkpoints, the best one and" in text and "lower checkpoint.keep" in text
    assert not (workplace / "run").exists()


def test_output_to_a_full_device_is_one_message(monkeypatch, capfd):
    """What is still in the buffer at the end would otherwise be a traceback of the interpreter."""
    from scalerl.cli.exits import guarded

    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert guarded(lambda: print("unwritten") or 0) == 1
        monkeypatch.undo()
    assert capfd.readouterr().err.startswith("scalerl: no space left on the disk")
