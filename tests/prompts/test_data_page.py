"""docs/data.md: its tables are valid configurations, its rows can be read, and it lists all named sets."""

import json

import pytest
from doc_pages import ROOT, blocks

from scalerl.training.config.data import PromptFile
from scalerl.training.config.named import NAMED_SETS
from scalerl.training.prompts.layouts import prompt_rows

PAGE = "docs/data.md"


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
