"""Files named like modules of Python, in the current directory: no command and none of its processes runs them."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import runs
from json_rows import write_rows
from serving import first_event

from scalerl.training.engines.vllm.server import ServerSpec, environment

NAMES = (
    "signal", "pickle", "multiprocessing", "socket", "struct", "random", "json", "tempfile", "queue", "logging",
    "threading", "colorsys", "numpy", "torch",
)  # fmt: skip
MODULE = """
import os
os.write(os.open({marks!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND), b"{name} ")
raise ImportError("planted")
"""
SHELL = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"}
SCRIPT = "import sys\nfrom scalerl.cli import main\nif __name__ == '__main__': sys.exit(main())\n"
"""What an installed `scalerl` runs: a file, whose directory is first on the path."""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A directory with such files, which is the current one."""
    place, marks = tmp_path / "place", tmp_path / "marks"
    place.mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scalerl").write_text(SCRIPT)
    monkeypatch.chdir(place)
    for name in NAMES:
        (place / f"{name}.py").write_text(MODULE.format(marks=str(marks), name=name))
    yield place
    assert not marks.exists(), marks.read_text()


def scalerl(*words):
    """Run a command in the current directory; return what it printed."""
    done = subprocess.run(
        [sys.executable, "../bin/scalerl", *map(str, words)], env=SHELL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def watching(*words):
    command = [sys.executable, "../bin/scalerl", "watch", "--port", "0", *words]
    with subprocess.Popen(command, env=SHELL, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("watch at"):
                yield line.split()[-1]
                process.send_signal(signal.SIGINT)


@pytest.mark.parametrize("start", [["../bin/scalerl"], ["-m", "scalerl.cli"]], ids=["scalerl", "python -m"])
def test_verifier_processes_run_no_files_of_a_data_directory(start, planted):
    file = write_rows(planted / "x.jsonl", [{"prompt": "1+1", "answer": "2", "completion": r"\boxed{2}"}])
    command = [sys.executable, *start, "score", file, "--task", "math"]
    done = subprocess.run(command, env=SHELL, capture_output=True, text=True, timeout=120)
    assert "1 of 1 passed" in done.stdout, done.stderr


def test_a_named_function_is_found_and_its_neighbors_replace_no_module(planted):
    (planted / "helpers.py").write_text("VALUE = 0.25")
    (planted / "code.py").write_text(  # also a module of Python
        "import colorsys, subprocess, sys\nfrom helpers import VALUE\n"
        "def score(prompts, completions, **_):\n"
        "    own = subprocess.run([sys.executable, 'tool.py'], capture_output=True, text=True)\n"
        "    return [VALUE + float(own.stdout) for _ in completions]\n"
    )
    (planted / "tool.py").write_text("from helpers import VALUE\nprint(VALUE)")  # not started by scalerl
    script = "from scalerl.core.plugins import load_function\nprint(load_function('code:score', 'x')(['a'], ['b']))"
    (planted.parent / "bin" / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "../bin/script.py"], env=SHELL, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[0.5]\n", done.stderr


def test_the_python_of_a_vllm_server_does_not_search_the_current_directory():
    server = environment(ServerSpec(model="m", max_model_len=1, max_num_seqs=1, log=None), {"PATH": "/bin"})
    code = subprocess.run([sys.executable, "-c", "import sys; print('' in sys.path)"], env=server, capture_output=True)
    assert code.stdout == b"False\n"


@pytest.mark.slow
def test_no_process_of_a_run_imports_from_its_directory(planted, lab_model, monkeypatch):
    words = [*runs.SMALL, "--steps", "8", "--evaluation.every", "2"]
    words += ["--placement.generators", "2", "--rollouts.slots", "8"]
    scalerl("train", "--model", lab_model, "--run-dir", "../run", *words)
    monkeypatch.chdir("../run")
    for file in planted.iterdir():
        shutil.copy(file, ".")
    scalerl("resume", ".", "--steps", "10")
    scalerl("eval", ".", "--prompts", "4")
    scalerl("fit", ".")
    with watching(".") as address:
        assert first_event(address)


ACTOR = """
import os
from scalerl.training.machines.connect import connect
ray = connect("local", "this test")
def actor():
    import colorsys, numpy, os
    return os.getcwd()
print(ray.get(ray.remote(actor).remote()) == os.getcwd())
"""


@pytest.mark.slow
def test_a_ray_actor_works_in_the_current_directory_and_imports_nothing_from_it(planted):
    pytest.importorskip("ray", reason="needs Ray")
    (planted.parent / "bin" / "script.py").write_text(ACTOR)
    done = subprocess.run([sys.executable, "../bin/script.py"], env=SHELL, capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("True\n"), done.stdout + done.stderr
