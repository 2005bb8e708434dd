"""Every command and snippet of the README runs."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import runs
from doc_pages import blocks
from grid_study import train
from serving import first_event, get, served
from simulated_study import TWO, write_study

from scalerl.training.config import QUICK
from scalerl.training.config.base import replace
from scalerl.training.study.directory import StudyDirectory
from scalerl.training.study.plan import select
from scalerl.training.study.plans import PLANS

SERVERS = {"scalerl watch"}
"""Commands that run until they are interrupted."""
BY_CI = {"make train", "source .venv/bin/activate"}
"""Commands that .ci/run runs in full, in a fresh clone."""
BEFORE = {
    "git clone https://github.com/scalerl/scalerl", "cd scalerl", "python3 -m venv .venv",
    'pip install -c constraints.txt ".[train,watch]"',
}  # fmt: skip
"""Commands that clone and install, as `make train` installs."""

SHORT = [
    "--steps", "3", "--recipe.prompts_per_step", "4", "--recipe.generations_per_prompt", "4",
    "--recipe.length.thinking_tokens", "[12, 20]", "--recipe.length.answer_tokens", "9",
    "--recipe.length.phrase", "</think>", "--evaluation.samples", "2",
]  # fmt: skip
"""Options added to a command that would train for a long time."""

FEWER = {"500": "30"}
"""Replacements for numbers of steps that would train for minutes."""


def commands():
    return [line for block in blocks("README.md", "bash") for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def place(lab_model, tmp_path_factory):
    """A directory like that of a reader of the README, with a run, a model, prompts and a reward function."""
    root = tmp_path_factory.mktemp("readme")
    shutil.copytree(lab_model, root / "my-model")
    rows = [f'{{"prompt": "{a}+{b}=<think>", "answer": "{(a + b) % 10}"}}\n' for a in range(10) for b in range(6)]
    (root / "prompts.jsonl").write_text("".join(rows))
    (root / "my_rewards.py").write_text(
        "def length(prompts, completions, **columns):\n    return [len(c) / 30 for c in completions]\n"
    )
    runs.train(lab_model, root / "runs/scalerl-lab-001")
    runs.train(lab_model, root / "runs/scalerl-lab-002", "--seed", "1")  # commands are run in any order
    shutil.copy(root / "runs/scalerl-lab-001/points.jsonl", root)
    write_study(root / "studies/loo", TWO)
    six = select(
        PLANS["frontier"](QUICK), [f"w{width}-p{prompts}-g16" for width in (64, 96, 128) for prompts in (8, 16)]
    )
    grid = StudyDirectory.create(root / "studies/grid", replace(six, seeds=(0,), held_out=()))
    train(grid, grid.plan.runs())
    return root


@pytest.mark.parametrize("command", [c for c in commands() if c not in BY_CI | BEFORE | SERVERS])
@pytest.mark.slow
def test_a_command_of_the_readme_works(place, command):
    name, *words = shlex.split(command)
    assert name == "scalerl"
    words = [FEWER.get(word, word) for word in words] + (SHORT if "--data" in words else [])
    words = [found for word in words for found in (sorted(place.glob(word)) if "*" in word else [word])]
    done = subprocess.run(runs.command(*words), cwd=place, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout, done.stdout + done.stderr


def test_the_servers_of_the_readme_serve_existing_runs_and_studies(tmp_path):
    pytest.importorskip("starlette", reason="the live page needs the extra `watch`")
    write_study(tmp_path / "studies/loo", TWO, seeds=1)
    assert set(commands()) >= SERVERS
    with served(cwd=tmp_path) as address:
        assert "<main" in get(address)[2] and len(first_event(address)["runs"]) == 2


def test_the_prompts_of_the_readme_are_300_products(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(blocks("README.md", "python")[0])
    rows = [json.loads(line) for line in Path("prompts.jsonl").read_text().splitlines()]
    assert len(rows) == 300 and {"prompt": "What is 12 * 13?", "answer": "156"} in rows


@pytest.mark.parametrize("snippet", blocks("README.md", "python")[1:])
@pytest.mark.slow
def test_a_snippet_of_the_readme_works(place, snippet):
    done = subprocess.run([sys.executable, "-c", snippet], cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "ceiling" in done.stdout, done.stdout + done.stderr


ROOT = Path(__file__).parents[1]


def anchors(page):
    """Return the anchors of a page's headings as on code hosts: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_linked_file_and_heading_exists(page):
    links = re.findall(r"\]\(((?!http)[^)]+)\)", page.read_text())
    assert links or page.name not in ("README.md", "recipe.md")
    for link in links:
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
