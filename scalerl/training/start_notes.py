"""Notes for the user before the first step of a run."""

from __future__ import annotations

from scalerl.config.placement import Hardware
from scalerl.rollouts.interrupt import LengthRule


def nucleus_notes(top_p: float) -> list[str]:
    """Return notes about nucleus sampling (`recipe.top_p` below 1)."""
    if top_p >= 1:
        return []
    return [
        f"recipe.top_p is {top_p:g}: log-probabilities do not include the nucleus, so a token's ratio is up to "
        f"{1 / top_p:.3g} times too large, and tokens outside the nucleus are never sampled; 1 has no such bias "
        "(docs/recipe.md)"
    ]


def length_notes(rule: LengthRule) -> list[str]:
    """Return notes about an end-of-thinking tag that is not a single token."""
    if len(rule.end_tag) <= 1:
        return []
    return [
        f"the end-of-thinking tag is {len(rule.end_tag)} tokens in this vocabulary, with {len(rule.tags)} encodings "
        "that depend on the surrounding text. If the model writes another encoding, the end of thinking is not "
        "detected and the phrase is inserted after it. A tag that is a single added token avoids this. For a model "
        "that does not think, set recipe.length.kind = 'none'"
    ]


def arithmetic(device: str) -> str:
    """Return what determines the rounding of results on CPU besides the configuration; empty on a GPU."""
    if device != "cpu":
        return ""
    import torch

    from scalerl.models.cpu import compiled
    from scalerl.models.cpu.processor import cpu

    return f"{cpu()}, torch {torch.__version__}, {'without' if compiled.problem() else 'with'} loops in C"


def arithmetic_notes(hardware: Hardware, before: str) -> list[str]:
    """Return notes about slow loops, and about a run that started with other arithmetic.

    Args:
        hardware: Hardware of the run.
        before: What `arithmetic` returned when the checkpoint was written; empty for a new run.
    """
    if hardware.device != "cpu":
        return []
    from scalerl.models.cpu import compiled

    notes, now = [], arithmetic("cpu")
    if (reason := compiled.problem()) and 1 in (hardware.generator_threads, hardware.trainer_threads):
        notes.append(f"{reason}, so generation takes about 1.5 times as long; install gcc or clang, or set CC")
    if before not in ("", now):
        notes.append(f"this run was computed on {before}; here it is {now}, so its results differ by rounding")
    return notes
