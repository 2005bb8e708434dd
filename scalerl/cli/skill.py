"""`scalerl skill`: prints the skill for agents that watch training."""

from __future__ import annotations

from importlib.resources import files

from scalerl.cli.options import Parser

DESCRIPTION = """print the skill (SKILL.md) for agents that watch training: what to call, how to read --json, when to
stop and when not. Save it where your agent looks for skills, such as .claude/skills/scalerl/SKILL.md."""


def run_skill(words: list[str]) -> int:
    """Print the skill; return the exit code."""
    Parser(prog="scalerl skill", description=DESCRIPTION).parse_args(words)
    print(skill_text(), end="")
    return 0


def skill_text() -> str:
    """Return the text of the skill."""
    return files("scalerl").joinpath("skills/scalerl/SKILL.md").read_text(encoding="utf-8")
