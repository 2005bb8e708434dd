"""The documentation site: its strict build fails for a broken link, anchor or fence."""

import importlib.util
import re
import tomllib

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

"""Text by the page to which it is added: an anchor that does not exist, a fence with a title, an open fence."""


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda page: page.name)
def test_no_page_has_a_fence_that_the_site_does_not_render(page):
    assert links.fence_problems(page.read_text()) == []


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
        ("docs/reference/python.md", "reference/python.md", "[a](../../SECURITY.md)", "[a](../security.md)"),
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
