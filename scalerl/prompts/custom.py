"""Prompts of user-defined tasks: their rows, with the columns that the scorer needs."""

from __future__ import annotations

from scalerl.config.data import CustomTask
from scalerl.prompts.layouts import Row
from scalerl.tasks import custom


def rows(task: CustomTask, held_out: int) -> tuple[list[Row], list[str]]:
    """Return `task.prompts` + `held_out` rows with distinct prompts; raises as `rows` in tasks/custom.py."""
    found = []
    for number, row in enumerate(custom.rows(task, task.prompts + held_out)):
        columns = {"function": task.function, "params": task.params, "pass_score": task.pass_score, "row": row}
        found.append(Row(row["prompt"], str(row.get("answer", "")), columns, f"{task.function} row {number}"))
    return found, []
