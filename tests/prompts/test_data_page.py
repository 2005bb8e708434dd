"""docs/data.md: its tables are valid configurations, its rows can be read, and it lists all named sets."""

import json

import pytest
from doc_pages import ROOT, blocks

from scalerl.training.config import read_config, to_toml
from scalerl.training.config.data import PromptFile
from scalerl.training.config.named import NAMED_SETS
from scalerl.training.prompts.layouts import prompt_rows

PAGE = "docs/data.md"


def test_the_page_has_tables_and_rows():
    assert len(blocks(PAGE, "toml")) >= 5 and len(blocks(PAGE, "json")) == 4


@pytest.mark.parametrize("text", blocks(PAGE, "toml"))
def test_a_table_of_the_page_is_a_configuration_that_can_be_saved_and_read(tmp_path, text):
    (tmp_path / "page.toml").write_text(text, encoding="utf-8")
    config = read_config(tmp_path / "page.toml", [] if "[model]" in text else ["--model", "my-model"])
    (tmp_path / "again.toml").write_text(to_toml(config), encoding="utf-8")
    assert read_config(tmp_path / "again.toml", []) == config and config.main_tasks


ROWS = list(zip(blocks(PAGE, "json"), ("plain", "verl", "open-instruct", "trl"), strict=True))


@pytest.mark.parametrize(("text", "layout"), ROWS)
def test_a_row_of_the_page_is_read_by_its_layout(tmp_path, text, layout):
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(json.loads(text)) + "\n")
    (named,), (told,) = (list(prompt_rows(PromptFile(path=str(path), layout=name))) for name in (layout, "auto"))
    assert named == told and named.answer in ("156", "3", "$3$")


def test_the_page_lists_every_named_set_with_its_hub_id(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import constants

    text = constants.on_page_markdown((ROOT / PAGE).read_text(encoding="utf-8"))
    for name, found in NAMED_SETS.items():
        assert f"`{name}`" in text and found.path in text, name
