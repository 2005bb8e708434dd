"""docs/scaling.md: every example runs in the order of the page, pictures can be drawn, warnings are explained."""

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path

import matplotlib
import pytest

from scalerl import cli
from scalerl.reading.curves import health
from scalerl.reading.curves.health import CHECKS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scaling.md").read_text()
LINKED = set(re.findall(r"\]\((images/[^)]+)\)", PAGE + (DOCS / "studies.md").read_text()))
BLOCKS = re.findall(r"```(python|bash)\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def pictures():
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "make_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """The output of each example; all run in order in one directory."""
    pytest.importorskip("plotly")
    matplotlib.use("agg")
    texts = {}
    with contextlib.chdir(tmp_path_factory.mktemp("examples")):
        for language, block in BLOCKS:
            for example in block.splitlines() if language == "bash" else [block]:
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    if language == "python":
                        exec(example, {})
                    else:
                        name, *words = shlex.split(example)
                        assert name == "scalerl" and cli.main(words) == 0, example
                texts[example] = out.getvalue()
        texts["files"] = {path.name for path in Path().iterdir()}
    return texts


@pytest.mark.slow
def test_every_example_runs_and_prints_what_the_page_has(printed):
    assert len(printed) >= 12 and {"report.html", "curve.png", "young.jsonl"} <= printed["files"]
    for block in re.findall(r"scalerl forecast noisy.jsonl\n```\n\n```\n(.*?)```", PAGE, flags=re.DOTALL):
        assert block in printed["scalerl forecast noisy.jsonl"]


def test_every_warning_is_explained_and_its_example_run_raises_it(pictures):
    explained = set(re.findall(r"^\| `([\w -]+)` \|", PAGE, flags=re.MULTILINE))
    assert explained == set(pictures.SYMPTOMS) == {*CHECKS, "late take-off", "two-phase rise", "slow end", "creep"}
    for name, curve in pictures.SYMPTOMS.items():
        assert name in {symptom.name for symptom in health(curve)}, name


def test_every_picture_is_linked(pictures):
    assert {f"images/{name}" for name in pictures.PICTURES} == LINKED
