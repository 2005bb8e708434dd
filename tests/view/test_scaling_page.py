"""docs/scaling.md: every example runs in the order of the page, pictures can be drawn, warnings are explained."""

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path

import matplotlib
import pytest
from browser import driver_or_skip

from scalerl import cli
from scalerl.cli.main import COMMANDS
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
def test_every_example_runs_and_writes_its_files(printed):
    assert len(printed) >= 12 and {"report.html", "curve.png", "young.jsonl"} <= printed["files"]


@pytest.mark.slow
def test_the_examples_print_what_the_page_describes(printed):
    assert "NOT identified" in printed["scalerl forecast young.jsonl --at 2x 16000 --target 0.5"]
    compared = next(text for example, text in printed.items() if example.startswith("scalerl compare"))
    assert compared.startswith("quick is ahead of slow at ") and "quick needs 0." in compared
    assert "\nwith probability 0.29 the run stays where it is" in printed["scalerl forecast noisy.jsonl"]
    for block in re.findall(r"scalerl forecast noisy.jsonl\n```\n\n```\n(.*?)```", PAGE, flags=re.DOTALL):
        assert block in printed["scalerl forecast noisy.jsonl"]
    assert "gives no uncertainty" in printed["scalerl fit quick-0.jsonl --method paper --exclude-below 1500"]


def test_every_command_for_curves_has_an_example():
    of_curves = [name for name, command in COMMANDS.items() if command.module == "curves"]
    assert len(of_curves) == 4 and all(f"\nscalerl {name} " in PAGE for name in [*of_curves, "report"])


def test_every_warning_is_explained_and_its_example_run_raises_it(pictures):
    explained = set(re.findall(r"^\| `([\w -]+)` \|", PAGE, flags=re.MULTILINE))
    assert explained == set(pictures.SYMPTOMS) == {*CHECKS, "late take-off", "two-phase rise", "slow end", "creep"}
    for name, curve in pictures.SYMPTOMS.items():
        assert name in {symptom.name for symptom in health(curve)}, name


def test_every_picture_is_linked(pictures):
    assert {f"images/{name}" for name in pictures.PICTURES} == LINKED


SCREENSHOTS = ("images/comparison.png", "images/backtest.png")


@pytest.mark.parametrize(
    "image", [pytest.param(name, marks=pytest.mark.slow) if name in SCREENSHOTS else name for name in sorted(LINKED)]
)
def test_a_picture_can_be_drawn(pictures, tmp_path, image):
    matplotlib.use("agg")
    place = tmp_path / Path(image).name
    assert (DOCS / image).read_bytes()[:4] == b"\x89PNG"
    if image in SCREENSHOTS:
        driver_or_skip()
    pictures.PICTURES[place.name](place)
    assert place.stat().st_size > 10_000
