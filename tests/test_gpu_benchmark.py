"""benchmarks/gpu.py: what has a CPU form runs, and the rest is left out with its reason."""

import json
import sys

import pytest


def test_the_tiny_form_measures_what_has_a_cpu_form_and_gives_reasons_for_the_rest(
    benchmark, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "gpu.json"
    parts = ["update", "transfer", "vLLM alone"]
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--tiny", "--vllm", "", "--out", str(out), "--parts", *parts])
    benchmark("gpu").main()
    found, text = json.loads(out.read_text()), capsys.readouterr().out
    assert found["left out"] == {"165k vLLM alone": "vLLM is not installed here (--vllm PYTHON)"}
    update = found["165k update"]
    forms = ("compiled", "compiled, recomputed", "eager", "eager, recomputed", "adapters, recomputed")
    assert set(update) == {f"{form}: {key}" for form in forms for key in ("s", "tokens/s")}  # no data sheet of a CPU
    assert update["eager: tokens/s"] * update["eager: s"] == pytest.approx(1024)
    assert len(found["165k transfer"]) == 4 and all(
        value > 0 for part in parts[:2] for value in found[f"165k {part}"].values()
    )
    assert text.count("left out") == 1 and text.count("165k") == 3
