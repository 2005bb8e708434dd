"""Prompts of reasoning-gym's procedural tasks: distinct questions, with the entries that the scorer needs."""

from __future__ import annotations

from scalerl.config.data import ReasoningGymTask
from scalerl.core.errors import ConfigError
from scalerl.prompts.layouts import Row
from scalerl.tasks.gym import make_data

TRIES = 4
"""Largest number of entries created per required prompt. With fewer distinct ones, the data set is refused."""


def rows(task: ReasoningGymTask, held_out: int) -> tuple[list[Row], list[str]]:
    """Return `task.prompts` + `held_out` rows with distinct questions.

    Raises:
        ConfigError: reasoning-gym is missing, has no such data set or parameter, or makes too few distinct questions.
    """
    wanted = task.prompts + held_out
    entries = make_data(task.dataset, TRIES * wanted, task.seed, task.parameters)
    found: dict[str, Row] = {}
    for index in range(TRIES * wanted):
        entry = entries[index]
        columns = {
            "dataset": task.dataset,
            "parameters": task.parameters,
            "pass_score": task.pass_score,
            "entry": entry,
        }
        answer = "" if entry["answer"] is None else str(entry["answer"])
        found.setdefault(entry["question"], Row(entry["question"], answer, columns, f"{task.dataset} entry {index}"))
        if len(found) == wanted:
            return list(found.values()), []
    raise ConfigError(
        f"data.prompts: {task.dataset} with the parameters {task.parameters!r} generates only about {len(found)} "
        f"distinct prompts; allowed: parameters that generate at least {wanted} (data.prompts plus held-out prompts)"
    )
