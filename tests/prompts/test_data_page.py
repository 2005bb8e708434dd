"""docs/data.md: its tables are valid configurations, its rows can be read, and it lists all named sets."""

import json
import re
from pathlib import Path

import pytest

from scalerl.config import read_config, to_toml
from scalerl.config.data import PromptFile
from scalerl.config.named import NAMED
from scalerl.prompts.layouts import read_rows

PAGE = (Path(__file__).parents[2] / "docs/data.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_page_has_tables_and_rows():
    assert len(blocks("toml")) >= 5 and len(blocks("json")) == 4


@pytest.mark.parametrize("text", blocks("toml"))
def test_a_table_of_the_page_is_a_configuration_that_can_be_saved_and_read(tmp_path, text):
    (tmp_path / "page.toml").write_text(text, encoding="utf-8")
    config = read_config(tmp_path / "page.toml", [])
    (tmp_path / "again.toml").write_text(to_toml(config), encoding="utf-8")
    assert read_config(tmp_path / "again.toml", []) == config and config.main_tasks


ROWS = list(zip(blocks("json"), ("plain", "verl", "open-instruct", "trl"), strict=True))


@pytest.mark.parametrize(("text", "layout"), ROWS)
def test_a_row_of_the_page_is_read_by_its_layout(tmp_path, text, layout):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(json.loads(text)) + "\n")
    (named,), (told,) = (list(read_rows(PromptFile(path=str(path), layout=name))) for name in (layout, "auto"))
    assert named == told and named.answer in ("156", "3", "$3$")


def test_the_page_lists_every_named_set_with_its_hub_id():
    for name, found in NAMED.items():
        assert f"`{name}`" in PAGE and found.path in PAGE, name
