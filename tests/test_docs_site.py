"""The documentation site: its strict build fails for a broken link, anchor or fence."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT

spec = importlib.util.spec_from_file_location("links", ROOT / "docs/links.py")
assert spec is not None and spec.loader is not None
links = importlib.util.module_from_spec(spec)
spec.loader.exec_module(links)

BROKEN = {
    "anchor": "[away](importing.md#no-such-heading)\n",
    "page": "[away](no-such-page.md)\n",
    "fence": "```python export\nx = 1\n```\n",
    "open fence": "```python\nx = 1\n",
}


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.name)
def test_no_page_has_a_fence_that_the_site_does_not_render(page):
    assert links.fence_problems(page.read_text()) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("```python export\nx\n```\n", 1), ("a\n\n  ```bash title here\nx\n  ```\n", 3), ("~~~ a b\n~~~\n", 1),
        ("```python\nx\n", 1), ("````\n```\n", 1), ("```\nx\n```\n\n```json {1}\n```\n", 5),
    ],
)  # fmt: skip
def test_a_broken_fence_is_a_problem_of_its_line(text, line):
    (problem,) = links.fence_problems(text)
    assert problem.startswith(f"line {line}: ")


@pytest.mark.parametrize(
    "text",
    ["```\nx\n```\n", "```python\nx\n```\n", "````\n```a b\n````\n", "~~~c++\n~~~\n", "```a``` b\n", "text ``` c\n"],
)
def test_a_fence_with_one_word_is_none(text):
    assert links.fence_problems(text) == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A copy of the sources of the site, and an environment whose mkdocs `make docs-build` finds."""
    pytest.importorskip("material", reason="needs the packages of the extra `docs`, as after `make docs-build`")
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", place / "docs")
    for name in ("Makefile", "mkdocs.yml", "pyproject.toml", "constraints.txt", *map(str, ROOT.glob("*.md"))):
        shutil.copy(ROOT / name, place)
    for name in ("scalerl", "examples", "tests", "benchmarks"):  # sources of the reference, and targets of links
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    (place / "venv/bin").mkdir(parents=True)
    (place / "venv/bin/mkdocs").symlink_to(Path(sys.executable).with_name("mkdocs"))
    (place / "venv/installed-docs").touch()
    return place


def build(place):
    """Run `make docs-build`; return its exit code and output."""
    words = ["make", "docs-build", "VENV=venv", "ARGS="]
    outer = {"MAKEFLAGS", "MAKEOVERRIDES"}  # of `make test-all ARGS=...`, whose variables an inner make takes over
    env = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, env={**env, "PYTHONPATH": "."})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_strict_build_of_the_pages_passes(site):
    code, out = build(site)
    assert code == 0, out


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(BROKEN))
def test_the_strict_build_fails_for_a_page_that_the_site_renders_wrongly(site, kind):
    page = site / "docs/scaling.md"
    whole = page.read_text()
    page.write_text(f"{whole}\n{BROKEN[kind]}")
    try:
        code, out = build(site)
        assert code != 0 and "scaling.md" in out, out
    finally:
        page.write_text(whole)
