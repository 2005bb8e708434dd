"""Blocks of the documentation pages that no other test runs: configurations are read, study commands pass a dry run."""

import re
import shlex

import pytest
from doc_pages import ROOT, blocks

from scalerl import cli
from scalerl.core import limits
from scalerl.training.config import read_config
from scalerl.training.study.plan import read_plan

WITHOUT = {"--reuse", "--rates"}
"""Options that name other studies."""


def test_files_that_the_pages_refer_to_exist():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    named = {
        (page.name, path)
        for page in pages
        for path in re.findall(r"`((?:tests|benchmarks|examples|scalerl)/[\w/.-]+\.\w+)[`:]", page.read_text())
    }
    assert len(named) > 20
    assert [(page, path) for page, path in sorted(named) if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_the_gallery_is_drawn_by_the_code_on_it(tmp_path, monkeypatch):
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    space = {}
    for block in blocks("docs/gallery.md", "python"):
        exec(block, space)
    for line in "".join(blocks("docs/gallery.md", "bash")).splitlines():
        words = [str(found) for word in shlex.split(line)[1:] for found in (sorted(tmp_path.glob(word)) or [word])]
        words = [word.removeprefix(f"{tmp_path}/") for word in words]
        assert cli.main(words) == 0
    assert "settings.csv" in words  # the line of the frontier was the last
    for name in ("one.png", "two/curves.png", "two/ceilings.png", "two/backtests-slow-0.png", "frontier/frontier.png"):
        assert (tmp_path / name).stat().st_size > 10_000, name
    pictures = re.findall(r"images/([\w.-]+)", (ROOT / "docs/gallery.md").read_text())
    assert len(pictures) == 5 and all((ROOT / "docs/images" / name).exists() for name in pictures)


def study_commands():
    """Return the words of every command that plans a study, and the page that it is from."""
    pages = ("docs/studies.md", "docs/replication.md", "docs/scale.md")
    text = [(page, block.replace("\\\n", " ")) for page in pages for block in blocks(page, "bash")]
    lines = [(page, line) for page, block in text for line in block.splitlines() if line.startswith("scalerl study ")]
    return [pytest.param(shlex.split(line)[1:], id=f"{page}: {line[:60]}") for page, line in lines]


def without_studies(words):
    """Leave out the options that name other studies, with their values."""
    kept, skipping = [], False
    for word in words:
        skipping = word in WITHOUT or (skipping and not word.startswith("-"))
        kept += [] if skipping else [word]
    return kept


@pytest.mark.usefixtures("no_hours")
@pytest.mark.parametrize("words", study_commands())
def test_a_study_command_of_a_page_passes_a_dry_run(words, monkeypatch, tmp_path, capsys):
    (tmp_path / "base.toml").write_text('preset = "quick"\n')
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)
    assert cli.main([*without_studies(words), "--dry-run"]) == 0, capsys.readouterr().err
    assert "arms" in capsys.readouterr().out


def test_the_study_of_the_page_is_a_plan(tmp_path):
    block, grid = blocks("docs/studies.md", "toml")
    (tmp_path / "study.toml").write_text(block)
    plan = read_plan(tmp_path / "study.toml")
    assert [arm.name for arm in plan.arms] == ["five", "eight"] and plan.reference == "five"
    assert plan.config(plan.arm("eight"), 0).recipe.loss.max_ratio == 8.0
    (tmp_path / "grid.toml").write_text(grid)
    plan = read_plan(tmp_path / "grid.toml")
    assert plan.is_held_out("wide") and plan.setting(plan.arm("base")) == {"model.width": 64.0}


@pytest.mark.parametrize("page", ["docs/recipe.md", "docs/models.md"])
def test_a_configuration_of_a_page_is_read(page, tmp_path):
    (block,) = blocks(page, "toml")
    (tmp_path / "run.toml").write_text(block)
    options = [] if "[model]" in block else ["--model", "my-model"]
    read_config(
        tmp_path / "run.toml", options if "[data]" in block or "[[data]]" in block else [*options, "--data", "p.jsonl"]
    )


def test_the_table_of_time_limits_has_every_limit_with_its_value_and_meaning(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import constants

    page = constants.on_page_markdown((ROOT / "docs/operating.md").read_text())
    rows = {name: (value, text) for name, value, text in re.findall(r"^\| `(\w+_S)` \| (.+?) \| (.+) \|$", page, re.M)}
    values = {name: value for name, value in vars(limits).items() if name.endswith("_S")}
    assert rows.keys() == values.keys() and rows["REHEARSAL_S"][0] == "3600" and rows["GROUP_GRACE_S"][0] == "10, 2, 0"
    assert rows["HUB_REQUEST_S"] == ("10", "for a request to the hub.")
