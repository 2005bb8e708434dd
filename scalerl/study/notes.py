"""Notes about a study in addition to its verdicts, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalerl.scaling.health import decline
from scalerl.study.directory import StudyDirectory
from scalerl.study.lr_sweep import sweep_note
from scalerl.study.plan import rates_note
from scalerl.study.results import ArmResult
from scalerl.view.outlook import data_note

CHANCE = 0.05
"""Level of the comparisons; a plan of twenty arms without any effect has one false alarm on average."""

SURE = 0.5
"""Probability above which a run counts as departing from the law."""


def notes(study: StudyDirectory, arms: Sequence[ArmResult]) -> Iterator[str]:
    """Yield the notes of a study, the most serious first."""
    yield from filter(None, map(_fallen, arms))
    yield from filter(None, map(_departed, arms))
    yield from filter(None, (data_note(study.plan.base), rates_note(study.plan), sweep_note(study)))
    seeds, comparisons = len(study.plan.seeds), len(arms) - 1
    yield (
        f"{_count(seeds, 'seed')} per arm; {_count(comparisons, 'comparison')} at the {CHANCE:.0%} level: "
        f"{comparisons * CHANCE:.1f} false alarms are expected if nothing differs"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _fallen(arm: ArmResult) -> str:
    """Note on an arm whose runs declined: the law does not describe it, and the verdicts do not show this."""
    falls = [symptom.numbers["fall"] for run in arm.runs if run.curve and (symptom := decline(run.curve))]
    if not falls:
        return ""
    return (
        f"{arm.name}: {len(falls)} of {len(arm.runs)} runs fell from their best, by up to {max(falls):.3f}; the law "
        f"only rises, so the numbers do not describe this arm; look for the cause"
    )


def _departed(arm: ArmResult) -> str:
    """Note on an arm whose runs depart from the law: its estimated ceiling tends to be too high."""
    found = [kind for fit in arm.fits for kind, p in fit.departures.items() if kind != "law" and p > SURE]
    if not found:
        return ""
    kinds = " or ".join(dict.fromkeys(found))
    return (
        f"{arm.name}: {len(found)} of {len(arm.runs)} runs depart from the law ({kinds}); such a ceiling is "
        f"less certain than its interval suggests; train further before you rely on it"
    )
