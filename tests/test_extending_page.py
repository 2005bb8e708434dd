"""docs/extending.md: its functions work with its tables, as written on the page."""

import sys

import pytest
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
