"""`scalerl study`: shows a study without what training needs, or plans and executes one."""

from __future__ import annotations

from collections.abc import Sequence


def run_study(words: Sequence[str]) -> int:
    """Run `scalerl study`; return the exit code.

    `words` are the arguments after `study`.

    Raises:
        UserError: There is an error that the user can correct.
    """
    if words[:1] == ["show"]:
        from scalerl.cli.study_show import show

        return show(words[1:])
    from scalerl.cli.study_run import plan_or_resume

    return plan_or_resume(words)
