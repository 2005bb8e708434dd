"""`scalerl eval`: metrics computed by hand, and complete evaluations of a tiny model."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runs
from doc_pages import json_keys
from json_rows import write_rows

from scalerl.cli import main
from scalerl.cli.eval import eval_config, eval_parser
from scalerl.training.config import LAB
from scalerl.training.config.base import build, replace
from scalerl.training.config.data import PromptFile
from scalerl.training.config.model import HuggingFaceModel
from scalerl.training.config.overrides import to_toml
from scalerl.training.loop.suites import pass_at_k, pass_at_powers


def passes(*rows):
    """Return passed_PN and counted_PN of rows such as "10-": passed, wrong, without a reward."""
    return tuple(np.array([[letter in letters for letter in row] for row in rows]) for letters in ("1", "10"))


def test_pass_at_k_is_the_probability_that_k_of_n_samples_include_a_pass():
    # 1 of 4 passes: 3 of the 6 pairs include it; 2 of 4 pass: 5 of 6 pairs; 1 of 4 passes: 3 of 4 triples
    assert pass_at_k(*passes("1000"), 2) == pytest.approx(0.5)
    assert pass_at_k(*passes("1100", "0000"), 2) == pytest.approx((5 / 6 + 0) / 2)
    assert pass_at_k(*passes("0100"), 3) == pytest.approx(0.75)
    # human-eval's product, 1 - prod(1 - k / i) for i in n - c + 1 .. n, at n = 200, c = 5, k = 10
    product = 1.0 - np.prod(1.0 - 10 / np.arange(200 - 5 + 1, 200 + 1))
    assert pass_at_k(*passes("1" * 5 + "0" * 195), 10) == pytest.approx(product, rel=1e-12)


def test_pass_at_k_is_given_at_powers_of_two_and_at_all_samples():
    found = pass_at_powers(*passes("110000", "000000"))
    assert list(found) == [1, 2, 4, 6]
    assert found[1] == pytest.approx(1 / 6) and found[6] == pytest.approx(0.5)


def test_pass_at_k_does_not_count_samples_without_a_reward():
    # 1 of 3 passes: 2 of the 3 pairs include it; of the second prompt's one sample there is no pair
    assert pass_at_k(*passes("100-", "---0"), 2) == pytest.approx(2 / 3)
    assert pass_at_k(*passes("100-", "---0"), 1) == pytest.approx(1 / 6)
    assert pass_at_powers(*passes("100-", "---0")) == pytest.approx({1: 1 / 6, 2: 2 / 3, 3: 1.0})
    assert pass_at_powers(*passes("--", "--")) == {}


@pytest.fixture
def evaluate(place, monkeypatch, capsys):
    """Call `scalerl eval` in this process, which has torch loaded; return its exit code and output."""

    def call(*words):
        monkeypatch.chdir(place)
        code = main(["eval", *map(str, words)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def place(lab_run, tmp_path_factory):
    root = tmp_path_factory.mktemp("eval")
    rows = [{"prompt": f"{a}+{b}=<think>", "answer": str((a + b) % 10)} for a in range(10) for b in range(4)]
    write_rows(root / "sums.jsonl", rows)
    shutil.copytree(lab_run, root / "run")
    (root / "empty").mkdir()
    return root


def test_a_model_directory_is_evaluated_on_a_file(evaluate, place, lab_model):
    words = ["--suite", "sums.jsonl", "--task", "arithmetic", "--samples", "4", "--max-tokens", "40", "--device", "cpu"]
    code, out, _ = evaluate(lab_model, *words, "--json")
    (found,) = json.loads(out)["suites"]
    assert code == 0 and set(found) == json_keys()["Suite"] and set(json.loads(out)) == json_keys()["eval"]
    assert (found["suite"], found["prompts"], found["samples"]) == ("sums", 40, 4)
    texts = [json.loads(line) for line in (place / found["texts"]).read_text().splitlines()]
    assert len(texts) == 160
    rates = np.array([[row["passed"] for row in texts[i : i + 4]] for i in range(0, 160, 4)]).mean(axis=1)
    assert found["mean"] == pytest.approx(rates.mean()) and 0.05 < found["mean"] < 1
    assert found["stderr"] == pytest.approx(rates.std(ddof=1) / np.sqrt(40))
    assert found["pass_at"]["1"] == pytest.approx(found["mean"]) and found["pass_at"]["4"] > found["mean"]
    first = texts[0]
    assert (
        first["reward"] == (1.0 if first["passed"] else -1.0) and first["tokens"] > 0 and "expected" in first["reason"]
    )
    _, again, _ = evaluate(lab_model, "--data", *words[1:], "--json", "--slots", "8")  # `train` has the option --data
    assert json.loads(again)["suites"][0]["mean"] == found["mean"]  # the engine's size changes no sample


def test_a_run_is_evaluated_on_its_own_held_out_prompts_as_at_its_last_point(evaluate, place):
    code, out, _ = evaluate("run", "--json")
    (found,) = json.loads(out)["suites"]
    assert code == 0
    last = runs.rows(place / "run", "points.jsonl")[-1]
    assert (found["suite"], found["prompts"], found["samples"]) == ("arithmetic", 16, 2)
    assert found["mean"] == last["pass_rate"] and found["stderr"] == last["stderr"]
    assert found["mean_tokens"] == last["mean_tokens"]


@pytest.mark.slow
def test_a_run_with_an_environment_is_evaluated_as_at_its_last_point(evaluate, place, lab_model, monkeypatch):
    monkeypatch.chdir(place)
    words = [*runs.chained(place), "--steps", "3", "--evaluation.every", "3"]
    runs.finish("train", "--model", str(lab_model), "--run-dir", str(place / "turns"), *words)
    code, out, error = evaluate("turns", "--json", "--trust")
    assert code == 0, error
    (found,) = json.loads(out)["suites"]
    last = runs.rows(place / "turns", "points.jsonl")[-1]
    assert found["mean"] == last["pass_rate"] and found["mean_tokens"] == last["mean_tokens"]
    texts = [json.loads(line) for line in (place / found["texts"]).read_text().splitlines()]
    assert {row["environment"]["turns"] for row in texts} <= {1, 2}


def test_a_copy_of_a_suite_is_read_by_its_columns(evaluate, place):
    rows = [{"problem": f"{a}+1=<think>", "answer": str(a + 1)} for a in range(3)]
    write_rows(place / "copy.jsonl", rows)
    code, out, _ = evaluate("run", "--suite", "aime-24=copy.jsonl", "--task", "arithmetic", "--json")
    assert code == 0 and [(s["suite"], s["prompts"]) for s in json.loads(out)["suites"]] == [("aime-24", 3)]


def test_a_run_without_an_exported_model_is_refused_with_instructions(evaluate, place):
    (place / "half").mkdir()
    (place / "half/config.toml").write_text((place / "run/config.toml").read_text())
    code, _, error = evaluate("half")
    assert code == 2 and "finish it with: scalerl resume half" in error


SUMS = ["--suite", "sums.jsonl", "--task", "arithmetic", "--max-tokens", "40", "--device", "cpu", "--json"]


@pytest.mark.slow
def test_an_environment_without_vllm_is_one_line_that_says_what_to_do(place, lab_model):
    words = [sys.executable, "-m", "scalerl.cli", "eval", lab_model, *SUMS, "--engine", "vllm"]
    done = subprocess.run([*words, "--vllm-python", sys.executable], cwd=place, capture_output=True, text=True)
    line = f"scalerl: vllm: the server did not start: {sys.executable} has no vLLM; install it there"
    *signs_of_life, error = done.stderr.splitlines()
    assert done.returncode == 2 and error.startswith(line) and "--vllm-python" in error
    assert all(text.endswith(" s") for text in signs_of_life)  # on a busy machine


@pytest.mark.vllm
@pytest.mark.skipif(
    "SCALERL_VLLM_PYTHON" not in os.environ, reason="SCALERL_VLLM_PYTHON names no Python with vLLM (make vllm-cpu)"
)
def test_vllm_and_the_torch_engine_complete_prompts_alike(place):
    """At 0.01, the lowest temperature of vLLM, engines draw the most probable token unless two are almost equal."""
    model = runs.make_model(place / "model", width=64)  # heads of 32, the smallest that vLLM has on CPUs
    python = ["--vllm-python", os.environ["SCALERL_VLLM_PYTHON"]]
    found = {}
    for engine, more in (("torch", []), ("vllm", python)):
        words = [sys.executable, "-m", "scalerl.cli", "eval", model, *SUMS, "--temperature", "0.01"]
        done = subprocess.run(
            [*words, "--engine", engine, *more, "-o", engine], cwd=place, capture_output=True, text=True,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        texts = [json.loads(line) for line in (place / engine / "sums.jsonl").read_text().splitlines()]
        found[engine] = [(row["prompt_id"], row["completion"]) for row in texts], json.loads(done.stdout)["suites"][0]
    (torch_texts, torch_suite), (vllm_texts, vllm_suite) = found["torch"], found["vllm"]
    assert sum(a == b for a, b in zip(torch_texts, vllm_texts, strict=True)) >= 32 and len(vllm_texts) == 40
    assert len({text for _, text in vllm_texts}) > 5 and vllm_suite.keys() == torch_suite.keys()
    assert vllm_suite["mean"] == pytest.approx(torch_suite["mean"], abs=0.15) and vllm_suite["tokens_per_s"] > 0


def test_a_file_is_judged_as_the_run_was_unless_a_reward_or_a_task_is_given(tmp_path, monkeypatch):
    """It was judged with Math-Verify, without a word."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("mine.py").write_text("def keyword(completions, **columns):\n    return [0.5] * len(completions)\n")
    Path("rows.jsonl").write_text('{"prompt": "a", "answer": "1"}\n')
    task = build(PromptFile, {"path": "rows.jsonl", "reward": "mine:keyword"}, "here")
    (tmp_path / "run/model").mkdir(parents=True)
    (tmp_path / "run/config.toml").write_text(to_toml(replace(LAB, data=(task,), model=HuggingFaceModel(path="m"))))
    for words, name, judge in (
        ([], "math", "mine:keyword"), (["--task", "math"], "math", None), (["--suite", "math-500"], "math", None),
    ):  # fmt: skip
        given = words if "--suite" in words else ["--data", "rows.jsonl", *words]
        (judged,) = eval_config(eval_parser().parse_args(["run", *given]))[1]
        assert (judged.task, judged.reward and judged.reward.function) == (name, judge)
