"""The documentation site: its strict build fails for a broken link, anchor or fence."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from doc_pages import ROOT


def loaded(name):
    """Return a hook or extension of the site."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


links = loaded("links")

BROKEN = {
    "scaling.md": "[away](importing.md#no-such-heading)\n",
    "studies.md": "```python export\nx = 1\n```\n",
    "gallery.md": "```python\nx = 1\n",
}
"""Text by the page to which it is added: an anchor that does not exist, a fence with a title, an open fence."""


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
def test_the_strict_build_fails_for_every_page_that_the_site_renders_wrongly(site):
    """CI builds the pages as they are."""
    for name, text in BROKEN.items():
        page = site / "docs" / name
        page.write_text(f"{page.read_text()}\n{text}")
    code, out = build(site)
    assert code != 0
    assert [name for name in BROKEN if not re.search(rf"WARNING.*\b{name}", out)] == [], out
    (site / "docs/data.md").write_text("[away](no-such-page.md)\n")
    assert "docs/data.md links to no-such-page.md" in build(site)[1]


# ---- addresses


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_on_pypi_the_readme_has_no_link_or_picture_that_is_relative():
    text = (ROOT / "README.md").read_text()
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 30 and all(target.startswith(("https://", "#")) for target in targets)
    repository = PROJECT["project"]["urls"]["Repository"]
    assert f"({repository}/blob/main/docs/importing.md)" in text
    raw = repository.replace("https://github.com", "https://raw.githubusercontent.com")
    assert f"({raw}/main/docs/images/first-light.png)" in text


@pytest.mark.parametrize(
    ("source", "page", "text", "moved"),
    [
        ("README.md", "index.md", "[a](docs/scaling.md#x)", "[a](scaling.md#x)"),
        ("README.md", "index.md", "![a](docs/images/logo.svg)", "![a](images/logo.svg)"),
        ("README.md", "index.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("docs/reference/python.md", "reference/python.md", "[`a`](../scaling.md)", "[`a`](../scaling.md)"),
        ("docs/reference/python.md", "reference/python.md", "[a](../../SECURITY.md)", "[a](../security.md)"),
        ("docs/data.md", "data.md", "[a](../examples)", "[a](https://host/me/blob/main/examples)"),
        ("docs/data.md", "data.md", "[a](../examples/slurm.sh)", "[a](https://host/me/blob/main/examples/slurm.sh)"),
        ("docs/data.md", "data.md", "```\n[a](no.md)\n```\n[b](#c) [d](https://e)", None),
    ],
)
def test_links_between_files_lead_to_pages_or_into_the_repository(source, page, text, moved):
    got = links.moved_links(text, ROOT / source, page, "https://host/me")
    assert got.replace("/tree/", "/blob/") == (moved or text)


def test_a_link_to_a_file_that_does_not_exist_is_an_error():
    with pytest.raises(FileNotFoundError, match="links to docs/no"):
        links.moved_links("[a](docs/no.md)", ROOT / "README.md", "index.md", "")


# ---- examples in docstrings


def test_an_example_of_a_docstring_is_fenced_without_flags_of_doctest():
    pytest.importorskip("griffe", reason="needs the packages of the extra `docs`, as after `make docs-build`")
    text = "Square.\n\nExample:\n    >>> a = 3  # doctest: +SKIP\n    >>> a * a\n    9\n\nReturns:\n    The square.\n"
    assert loaded("doctests").fenced(text) == (
        "Square.\n\nExample:\n    ```pycon\n    >>> a = 3\n    >>> a * a\n    9\n    ```\n\nReturns:\n    The square.\n"
    )
