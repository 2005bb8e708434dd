"""docs/extending.md: its functions work with its tables, as written on the page."""

import subprocess
import sys
import textwrap

import pytest
import runs
from doc_pages import blocks
from tiny_models import tiny_model

from scalerl.training.config.overrides import parse_config
from scalerl.training.config.recipe import Custom
from scalerl.training.engines.testing import check_engine
from scalerl.training.prompts.sources import custom_rows
from scalerl.training.recipe.custom import check_functions

PAGE = "docs/extending.md"


@pytest.fixture
def module(user_code):
    """The functions of the page in one module."""
    *functions, use = blocks(PAGE, "python")
    assert "scalerl.train(" in use and len(functions) == 6
    user_code("my_functions", "\n".join(functions))
    yield use
    sys.modules.pop("my_functions", None)


def test_the_functions_of_the_page_pass_the_checks_of_a_run(module):
    config = parse_config('[model]\nkind = "hf"\npath = "m"\n' + "\n".join(blocks(PAGE, "toml")), "page")
    assert [getattr(config.recipe, part).kind for part in ("loss", "advantage", "aggregation")] == ["custom"] * 3
    check_functions(config.recipe)
    rows, _ = custom_rows(config.data[0], held_out=10)
    assert len(rows) == 110


def test_the_engine_of_the_page_satisfies_the_contract(module, tmp_path):
    config = parse_config('[model]\nkind = "hf"\npath = "m"\n' + "\n".join(blocks(PAGE, "toml")), "page")
    engine = config.placement.engine
    assert engine == Custom(function="my_functions:Counting", params={"every": 500})
    tiny_model("qwen3").save_pretrained(tmp_path / "model")
    check_engine(engine.function, str(tmp_path / "model"), engine.params)


@pytest.mark.slow
def test_the_python_of_the_page_trains(module, lab_model, tmp_path):
    (tmp_path / "prompts.jsonl").write_text(
        "".join(f'{{"prompt": "{a}+{b}=<think>", "answer": "{(a + b) % 10}"}}\n' for a in range(10) for b in range(6))
    )
    short = textwrap.dedent(
        """
        steps=5, evaluation__every=1, evaluation__prompts=16, evaluation__samples=4, run_dir="run",
        recipe__length={"kind": "interruption", "thinking_tokens": [12, 20], "answer_tokens": 9, "phrase": "</think>"},
        recipe__prompts_per_step=4, recipe__generations_per_prompt=4,
        recipe__optimizer={"learning_rate": 1e-3, "warmup_steps": 1},
        """
    )
    script = module.replace('"my-model"', repr(str(lab_model))).replace(
        "    steps=100,\n", textwrap.indent(short, "    ")
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "ceiling" in done.stdout, done.stdout + done.stderr
    assert len(runs.rows(tmp_path / "run", "metrics.jsonl")) == 5
    assert 'function = "my_functions:capped"' in (tmp_path / "run/config.toml").read_text()
