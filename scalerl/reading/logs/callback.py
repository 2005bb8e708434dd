"""A callback for TRL and the Hugging Face Trainer: writes points.jsonl, prints forecasts, can stop the run.

By default it counts one device per trainer process; set `devices` if there is also a separate vLLM server.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from scalerl.core.files import write_whole
from scalerl.core.rows import RowFile
from scalerl.reading.curves import Curve, CurveError, Fit, advise, fit, forecast
from scalerl.reading.curves.curve import TRAINING_REWARD
from scalerl.reading.curves.sampling import MIN_POINTS
from scalerl.reading.curves.stop import StopRule, judge, stop_rule
from scalerl.reading.logs.points import evaluation_sets, of_tables
from scalerl.reading.tables.table import table_of

ROWS_TO_SPEAK = 10
"""Logged rows of training without an evaluation after which the callback says what it uses, or what is missing."""

LOOKS_APART = 1.25
"""Ratio of the numbers of rows at which a forecast of the training reward is made again."""


class ForecastCallback(TrainerCallback):  # type: ignore[misc]
    """Writes the run's curve while it trains, prints its forecast, and can stop it by a condition.

    Example:
        >>> trainer = GRPOTrainer(..., callbacks=[ForecastCallback("run/points.jsonl")])        # doctest: +SKIP
        >>> ForecastCallback("run/points.jsonl").stop_when("falling", "ceiling identified")     # doctest: +SKIP
    """

    def __init__(
        self,
        path: str | Path,
        *,
        metric: str | None = None,
        devices: float | None = None,
        bounds: tuple[float, float] | None = None,
        axis: str = "device_hours",
        min_gain: float | None = None,
        price: float | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """Choose the metric and the compute axis.

        Args:
            path: The points.jsonl to write; a resumed run continues it, a new run replaces it.
            metric: The metric, as TRL logs it; None: `eval_reward`, or without evaluations the reward of training.
            devices: Number of accelerators of the run; by default one for each of the trainer's processes.
            bounds: Smallest and largest possible value of the metric; None: 0 and 1, or those of the training reward.
            axis: Compute axis of the curve: device_hours, tokens (if the trainer counts them) or step.
            min_gain: Smallest gain that is worth twice the compute, in the metric's unit; None: 0.02 of its range.
            price: Price of a device-hour; None: costs are in device-hours.
            say: Function that prints a line.

        Raises:
            CurveError: The axis is invalid.
        """
        if axis not in ("device_hours", "tokens", "step"):
            raise CurveError(f"axis must be device_hours, tokens or step; got {axis!r}")
        self.path, self.devices, self.bounds = Path(path), devices, bounds
        self.requested_metric, self.metric = metric, metric or "eval_reward"
        self.logged: list[dict[str, Any]] = []
        self.evaluated, self.next_look = False, ROWS_TO_SPEAK
        self.axis, self.say, self.min_gain, self.price = axis, say, min_gain, price
        self.conditions, self.rules = False, list[StopRule]()
        self.points: list[dict[str, Any]] = []
        self.seconds, self.count, self.step_start = 0.0, 1.0, 0.0
        self.latest: Mapping[str, Any] = {}

    def stop_when(self, *conditions: str) -> ForecastCallback:
        """Stop the run when one of these conditions holds; return the callback.

        Conditions that already hold when a run is resumed are dropped for the rest of the run.

        Args:
            conditions: Conditions such as "gain at 2x below 0.01", "ceiling identified" or "falling".

        Raises:
            CurveError: A condition cannot be parsed.
        """
        self.conditions, self.rules = True, [stop_rule(text) for text in conditions]
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start a curve, or read the curve of a resumed run."""
        self.points, self.seconds, self.logged = [], 0.0, []
        self.evaluated, self.next_look = False, ROWS_TO_SPEAK
        self.count = args.world_size if self.devices is None else self.devices
        if state.global_step and self.path.exists():
            self.points = [row for row in earlier_points(self.path) if row["step"] <= state.global_step]
            last = self.points[-1] if self.points else None
            if last and last["step"]:
                # if the checkpoint is later than the last evaluation, assume the same time per step in between
                self.seconds = last["device_hours"] * 3600 / self.count * state.global_step / last["step"]
            per_step = self.seconds * self.count / 3600 / state.global_step
            self.logged = [{**row, "device_hours": row["step"] * per_step} for row in training_rows(state.log_history)]
            self.next_look = max(ROWS_TO_SPEAK, len(self.logged) + 1)
            self.overrule()
        if state.is_world_process_zero:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.write()

    def overrule(self) -> None:
        """Drop the conditions that hold already, because a resumed run would stop at its first evaluation."""
        for task in {str(point["task"]) for point in self.points}:
            fit_result = self.fit_of(task)
            held = self.reasons(fit_result) if fit_result else {}
            self.rules = [rule for rule in self.rules if rule.text not in held]
            for reason in held.values():
                self.say(f"resumed although {reason}; this condition is ignored from now on")

    def reasons(self, fit_result: Fit) -> dict[str, str]:
        """Return the conditions that hold, with the reason for each."""
        judged = {rule.text: judge(rule, [fit_result]) for rule in self.rules}
        return {text: judgment.text for text, judgment in judged.items() if judgment.holds}

    def fit_of(self, task: str) -> Fit | None:
        """Fit the curve of a task; None before its fifth evaluation."""
        rows = [point for point in self.points if point["task"] == task]
        return fit(Curve.from_rows(rows, axis=self.axis, bounds=self.bounds)) if len(rows) >= MIN_POINTS else None

    def write(self) -> None:
        """Replace the file atomically, so that a killed run leaves a complete one."""
        write_whole(self.path, "".join(json.dumps(row) + "\n" for row in self.points))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock; evaluation, logging and checkpoints happen between steps and are not counted."""
        self.step_start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock."""
        self.seconds += time.perf_counter() - self.step_start

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Keep the metrics of the evaluation, which TRL passes only to its logs; without evaluations use training's."""
        if logs and any(name.startswith("eval_") for name in logs):
            self.latest, self.evaluated = dict(logs), True
        elif logs and "train_runtime" not in logs:
            self.logged.append({**logs, "step": state.global_step, "device_hours": self.seconds * self.count / 3600})
            of_training = self.requested_metric is not None and not self.requested_metric.startswith("eval_")
            if len(self.logged) >= self.next_look and (of_training or not self.evaluated):
                self.next_look = math.ceil(len(self.logged) * LOOKS_APART)
                self.look_at_training(state, control)

    def look_at_training(self, state: Any, control: Any) -> None:
        """Use the reward of training: write its points, print the forecast, stop the run if a condition holds."""
        stop = False
        if state.is_world_process_zero:
            log = table_of(self.logged, form="the trainer's logs", name="the run")
            columns = {"device_hours": "device_hours"} if self.axis == "device_hours" else {}
            try:
                imported = of_tables([log], "trl", metric=self.requested_metric, bounds=self.bounds, columns=columns)
            except CurveError as error:  # training continues
                self.say(f"forecast  none after {len(self.logged)} rows without an evaluation: {error}")
            else:
                first = not self.points
                self.points = imported.rows
                self.write()
                if first:
                    self.say(
                        f"forecast  of {imported.metric}, the training reward, because there are no evaluations; set "
                        "eval_strategy for a curve of held-out prompts"
                    )
                for reason in self.look_ahead(str(self.points[-1]["task"])).values():
                    stop = True
                    self._say_stopping(reason)
        if self.conditions and agreed(stop):
            control.should_training_stop = True

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Add a point, print the forecast, and stop the run if a condition holds."""
        figures = {**self.latest, **(metrics or {})}
        self.latest = {}
        if self.requested_metric is not None and not self.requested_metric.startswith("eval_"):
            return  # the user chose a reward of training
        if any(point.get("kind") == TRAINING_REWARD for point in self.points):
            self.points = []  # the run has evaluations after all
        value = figures.get(self.metric)
        if not isinstance(value, int | float) or not math.isfinite(value):
            # printed, not raised: a missing metric must not end a long run
            names = ", ".join(sorted(name for name in figures if name.startswith("eval_"))) or "none"
            self.say(f"forecast  none at step {state.global_step}: no number in {self.metric!r}; its metrics: {names}")
            return
        stop = False
        if state.is_world_process_zero:
            self.add_point(figures, state)
            for reason in self.look_ahead(str(self.points[-1]["task"])).values():
                stop = True
                self._say_stopping(reason)
        # only the first process drops rules on a resume, so its decision counts
        if self.conditions and agreed(stop):
            control.should_training_stop = True

    def add_point(self, figures: Mapping[str, Any], state: Any) -> None:
        """Write one evaluation; it replaces an earlier one of the same step."""
        task = next(iter(evaluation_sets([*figures])), self.metric)
        point = {
            "step": state.global_step,
            "device_hours": self.seconds * self.count / 3600,
            **({"tokens": float(state.num_input_tokens_seen)} if state.num_input_tokens_seen else {}),
            "task": task,
            "pass_rate": float(figures[self.metric]),
        }
        self.points = [p for p in self.points if (p["step"], p["task"]) != (point["step"], task)] + [point]
        self.write()

    def _say_stopping(self, reason: str) -> None:
        self.say(f"stopping, because {reason.removesuffix('.')}; resume from the last checkpoint to continue anyway")

    def look_ahead(self, task: str) -> dict[str, str]:
        """Print decision and forecast of a task from the fifth evaluation on; return `reasons`, empty without a fit."""
        last = self.points[-1]
        try:
            fit_result = self.fit_of(task)
            if fit_result is None:
                return {}
            advice = advise(fit_result, min_gain=self.min_gain, price=self.price)
        except CurveError as error:  # training continues
            self.say(f"forecast  none at step {last['step']}: {error}")
            return {}
        self.say(str(advice))
        twice, four = forecast(fit_result, at=["2x", "4x"]).at
        value = last["pass_rate"] if "pass_rate" in last else last["metric"]
        kind = f" ({TRAINING_REWARD})" if last.get("kind") == TRAINING_REWARD else ""
        level = f"{task}{kind} {value:.3f} at step {last['step']}"
        self.say(f"forecast  {level}; with 2x {twice:.3f}; 4x {four:.3f} the compute")
        return self.reasons(fit_result)


def training_rows(history: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of training in the logs of a run that is resumed."""
    return [
        dict(row)
        for row in history
        if "step" in row and "train_runtime" not in row and not any(name.startswith("eval_") for name in row)
    ]


def earlier_points(path: Path) -> list[dict[str, Any]]:
    """Read the points that a run wrote before it was resumed."""
    file = RowFile(path)
    rows = [line.row for line in file.new_lines()]
    if file.broken or not all({"step", "device_hours", "task"} <= row.keys() for row in rows):
        raise CurveError(f"{path} was not written by this callback; move it away or give another path")
    return rows


def agreed(stop: bool) -> bool:
    """Return the decision of the first process in every process; if only one stopped, the others would wait for it."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return stop
    decision = [stop]
    dist.broadcast_object_list(decision, src=0)
    return decision[0]
