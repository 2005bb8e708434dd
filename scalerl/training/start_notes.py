"""What a person should know of a run before its first step."""

from __future__ import annotations

from scalerl.rollouts.interrupt import LengthRule


def nucleus_notes(top_p: float) -> list[str]:
    """Return what a person should know of a nucleus (`recipe.top_p`)."""
    if top_p >= 1:
        return []
    return [
        f"recipe.top_p is {top_p:g}: log-probabilities are those before the nucleus, so a token's ratio is up to "
        f"{1 / top_p:.3g} times too large, and tokens outside the nucleus are never tried; 1 has no such bias "
        "(docs/recipe.md)"
    ]


def length_notes(rule: LengthRule) -> list[str]:
    """Return what a person should know of an end-of-thinking tag that is not one token."""
    if len(rule.end_tag) <= 1:
        return []
    return [
        f"the end-of-thinking tag is {len(rule.end_tag)} tokens in this vocabulary, in {len(rule.tags)} ways, "
        "which depend on the text around it; where the model writes it in yet another way the end goes unnoticed and "
        "the phrase is written after it. A single added token avoids that, and length control 'none' fits a model that "
        "does not think"
    ]
