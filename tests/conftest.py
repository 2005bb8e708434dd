import fcntl
import importlib
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# equal examples in every run and no timing, so that a failure is not chance
UNTIMED = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=UNTIMED)
settings.load_profile("repeatable")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background with SIGINT ignored
for number in (signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) == signal.SIG_IGN:  # as nohup leaves it; processes under test do not inherit a handler
        signal.signal(number, lambda *_: None)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads make the process tests crawl
sys.path.insert(0, str(Path(__file__).parent))  # for helper modules such as tiny_models


def pytest_terminal_summary(terminalreporter, config):
    if seed := getattr(config.option, "randomly_seed", None):  # -q hides the header that has it
        terminalreporter.write_line(f"order of the tests: --randomly-seed={seed}")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, worker_id):
    """A function that returns the path of a name, which a function makes in the first process that asks for it."""
    own = tmp_path_factory.getbasetemp()
    shared = own if worker_id == "master" else own.parent  # of all processes of pytest-xdist

    def path_of(name, make):
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (shared / f"{name}.made").exists():
                make(shared / name)
                (shared / f"{name}.made").touch()
        return shared / name

    return path_of


@pytest.fixture(scope="session")
def lab_model(made_once):
    """A tiny model trained on a few hundred traces; some of its answers pass, so its rewards have variance."""
    import runs

    return made_once("lab-model", runs.make_model)


@pytest.fixture(scope="session")
def lab_run(made_once, lab_model):
    """A finished run of runs.SMALL with `lab_model`, to be read only; lab-run.txt next to it is what it printed."""
    import runs

    return made_once("lab-run", lambda path: path.with_suffix(".txt").write_text(runs.train(lab_model, path)))


@pytest.fixture(scope="module")
def opened(page_file):
    """The page of a module's fixture `page_file` in a browser."""
    from browser import opened_page

    with opened_page(page_file) as page:
        yield page


@pytest.fixture
def prompt_file(tmp_path, monkeypatch):
    """The file p.jsonl with 2,000 prompts, in a new current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text("".join(f'{{"prompt": "1+{n}", "answer": "{1 + n}"}}\n' for n in range(2000)))
    return tmp_path / "p.jsonl"


@pytest.fixture
def benchmark(monkeypatch):
    """A function that imports a script of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def user_code(tmp_path, monkeypatch):
    """A function that writes a user module into the working directory, from which it can be imported."""
    from scalerl.core import plugins
    from scalerl.training.rewards import custom

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name, text: (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    for cached in (plugins.loaded, custom._task_object):
        cached.cache_clear()


@pytest.fixture
def chat():
    """A tokenizer with a chat template in the form of Qwen's and byte-level tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


@pytest.fixture
def scored_here(monkeypatch):
    """Reward functions are checked in this process, which takes seconds less than in their own."""
    from scalerl.core.errors import outcome
    from scalerl.training.rewards import scoring

    class Here:
        def __init__(self, *words):
            pass

        def schedule(self, function, *words, limit_s):
            return outcome(lambda: function(*words))

        def close(self):
            pass

    monkeypatch.setattr(scoring, "ScoringPool", Here)


@pytest.fixture
def no_prospect(monkeypatch):
    """Plans and dry runs do not say what the curve will tell, for which they fit up to 200 simulated runs."""
    for module in ("plan", "new", "train"):
        monkeypatch.setattr(f"scalerl.cli.{module}.curve_line", lambda config, held_out=None: "curve: not simulated")


@pytest.fixture
def no_hours(monkeypatch):
    """Dry runs of studies do not simulate how long each of their runs takes."""
    monkeypatch.setattr("scalerl.cli.study_run._expected_seconds", lambda *_: 60.0)


@pytest.fixture
def handlers():
    """Restore the signal handlers after a test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
