"""The Python interface of `import scalerl`: train, load, fit and forecast runs in scripts and notebooks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scalerl.core.calls import checked, missing
from scalerl.core.errors import ConfigError
from scalerl.core.packages import TRAINING_MODULES, check_installed, prepare_environment
from scalerl.core.printable import escape_unknown
from scalerl.core.rows import RowFile, read_rows
from scalerl.core.run_files import METRICS, POINTS, RECORDS, SAMPLES, RunInfo, read_run
from scalerl.core.stop_signals import StopFlag

if TYPE_CHECKING:
    from scalerl.reading.curves import Advice, Curve, Fit, Forecast, Prior
    from scalerl.reading.curves.notebook import Scale
    from scalerl.training.config import RunConfig

AxisName = Literal["device_hours", "flops", "tokens", "step"]
"""Compute axes of a run."""


def train(
    config: Any = None, *, run_dir: str | Path | None = None, progress: bool = True, trust: bool = False, **fields: Any
) -> Run:
    """Train a run to its end and return it, like `scalerl train`.

    An interrupt (Ctrl-C, or the stop button of a notebook) stops the run after the current step with a checkpoint. The
    returned run can then be resumed.

    Args:
        config: Path of a TOML file, a RunConfig, or None for the embedded lab.
        run_dir: Directory to write; None: runs/NAME-NNN.
        progress: Whether to show the run while it trains: a live table on a terminal, else lines.
        trust: Whether to run the code in a TOML file without asking. Code in `fields` or a RunConfig is always trusted.
        fields: Fields of the configuration by their dotted names, `**{"recipe.loss.max_ratio": 8}`. Two underscores
            mean a dot, `recipe__loss__max_ratio=8`; the short names are those of the command line, `seed=1`.

    Raises:
        ConfigError: The configuration, the model or the data is invalid.
        RunFailed: The run ended early; it can be resumed.

    Example:
        >>> run = scalerl.train("config.toml", seed=1, steps=100)        # doctest: +SKIP
        >>> print(run.forecast(at=["2x", "4x"]))                         # doctest: +SKIP
    """
    check_installed(TRAINING_MODULES)
    from scalerl.core.files import output_directory
    from scalerl.training.config import RunConfig
    from scalerl.training.config.trust import check_trust

    run_config, about = _configure(config, fields)
    is_trusted = config is None or isinstance(config, RunConfig)
    check_trust([run_config], str(config), trusted=trust or is_trusted, typed=[str(value) for value in fields.values()])

    if progress and about:
        print(*about, sep="\n")
    with output_directory(run_dir, Path("runs"), run_config.recipe.name) as path:
        return _complete(run_config, lambda launch: partial(launch.start, run_config, path), progress)


@checked(None)
def resume(
    path: str | Path,
    *,
    steps: int | None = None,
    from_step: int | None = None,
    progress: bool = True,
    trust: bool = False,
    **fields: Any,
) -> Run:
    """Resume a run from its last checkpoint, or an earlier one, and return it, like `scalerl resume`.

    Args:
        path: Run directory.
        steps: New total number of steps; None: unchanged.
        from_step: Step of the checkpoint to go back to; later checkpoints and rows are removed. None: the last one.
        progress: Whether to show the run while it trains, as in `train`.
        trust: Whether to run unconfirmed code in the run's configuration without asking.
        fields: Fields that may change on resume, with names as in `train`: the learning rate
            (`recipe__optimizer__learning_rate=5e-7`, from this step on), `stop_when`, `checkpoint` and `placement`.

    Raises:
        ConfigError, RunFailed: As for `train`.
    """
    check_installed(TRAINING_MODULES)
    from scalerl.training.config.base import replace
    from scalerl.training.config.trust import check_trust
    from scalerl.training.loop.run_dir import saved_config

    config = saved_config(Path(path))
    check_trust([config], str(path), trusted=trust)
    if steps is not None:
        config = replace(config, steps=steps)

    options = {"options": _named(fields), "from_step": from_step}
    return _complete(config, lambda launch: partial(launch.resume, Path(path), steps, **options), progress)


@checked()
def load(path: str | Path) -> Run:
    """Return the run in a directory, finished or not.

    Raises:
        ConfigError: The directory contains no run.
    """
    return Run(path)


RUN_HABITS = {
    "summary describe status": "write print(run) for its step, print(run.fit()) for its curve",
    "history log logs df data rows": "write run.points for the evaluations, run.metrics for the training steps",
    "name id": "write run.path.name",
    "report": "write scalerl.report(run)",
    "compare": "write scalerl.compare(run, other)",
    "backtest": "write scalerl.backtest(run)",
    "train start continue_": "write run.resume(steps=...)",
    "model": "write run.model_path, a directory for transformers",
    "steps total_steps num_steps": "write run.info.steps",
    "done completed": "write run.finished",
}
"""What to write instead of names that users of other packages try on a run."""


class Run:
    """A run directory. Every access reads the files again, so that you can follow a run that trains elsewhere.

    Example: Run("runs/scalerl-001").forecast(at=["2x"])
    """

    def __init__(self, path: str | Path) -> None:
        """Open a run directory for reading.

        Raises:
            ConfigError: The directory contains no run.
        """
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(
                f"got a {type(path).__name__}; allowed: the path of a run directory. scalerl.fit(data) reads data "
                "frames and rows"
            )
        self.path = Path(path)
        if self.path.is_file():
            raise ConfigError(f"{path} is a file; allowed: a run directory. scalerl.fit({str(path)!r}) reads a log")
        self.info  # noqa: B018  # raises if there is no run

    def __fspath__(self) -> str:
        return str(self.path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'Run' object has no attribute {name!r}")
        raise missing("Run object", name, RUN_HABITS, [word for word in [*dir(Run), "path"] if word[0] != "_"])

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, step {self.step} of {self.info.steps})"

    def _repr_html_(self) -> str:
        from scalerl.reading.pages.notebook import run_html

        return run_html(self)

    @property
    def config(self) -> RunConfig:
        """The resolved configuration; needs the extra `train`."""
        check_installed(["pydantic", "tomli_w"])
        from scalerl.training.loop.run_dir import saved_config

        return saved_config(self.path)

    @property
    def info(self) -> RunInfo:
        """What run.json says: title, compute axis, tasks, settings and notes, without the training packages."""
        return read_run(self.path)

    @property
    def step(self) -> int:
        """Number of updates so far."""
        rows = RowFile(self.path / METRICS).tail()  # of a long run only the end is read
        return int(rows[-1]["step"]) if rows else 0

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last step and exported the model."""
        return (self.path / "model" / "config.json").exists() and self.step >= self.info.steps

    @property
    def model_path(self) -> Path:
        """Directory of the exported model and tokenizer in Hugging Face format, written at the end of a run."""
        return self.path / "model"

    @property
    def points(self) -> Any:
        """Evaluations (docs/metrics.md), one per row: a pandas DataFrame, or a list of dicts without pandas."""
        return _frame(read_rows(self.path / POINTS))

    @property
    def metrics(self) -> Any:
        """Training steps (docs/metrics.md), one per row: a pandas DataFrame if pandas is installed, else a list."""
        return _frame(read_rows(self.path / METRICS))

    def samples(self) -> list[dict[str, Any]]:
        """Return the training rollouts of rollouts/samples.jsonl with their exact tokens.

        Each is its row (docs/metrics.md) with arrays over its P prompt tokens and T completion tokens: `prompt_tokens`
        [P], `tokens` [T], `logps` [T] (nats, at `recipe.temperature`, by the weights of `versions`), `versions` [T],
        and `sampled` [T], which is false for inserted tokens. With `recipe.top_p` below 1 also `nucleus_sizes` [T] and
        `nucleus_ids`, the ids that each token could be, one set after the other.

        Raises:
            ConfigError: A record is missing or damaged.
        """
        from scalerl.core.files import open_regular
        from scalerl.training.loop.rollout_rows import unpacked_tokens

        if not (rows := read_rows(self.path / SAMPLES)):
            return []
        try:
            with open_regular(self.path / RECORDS) as file:
                for row in rows:
                    offset, size = row.pop("record")
                    file.seek(offset)
                    row |= unpacked_tokens(file.read(size))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{self.path / RECORDS}: a record cannot be read ({error}); restore the file as the run wrote it"
            ) from None
        return rows

    @checked()
    def curve(self, task: str | None = None, compute: AxisName | None = None) -> Curve:
        """Return the compute-performance curve.

        Args:
            task: Name of the task; required if there are several.
            compute: device_hours, flops, tokens or step; None: device_hours on a GPU, else flops.

        Raises:
            CurveError: There are no evaluations yet, or no such task.
        """
        from scalerl.reading.curves import Curve

        return Curve.read(self.path, compute=compute, task=task)

    @checked()
    def fit(
        self,
        task: str | None = None,
        compute: AxisName | None = None,
        *,
        r0: float | None = None,
        exclude_below: float = 0.0,
        prior: Prior | None = None,
    ) -> Fit:
        """Fit the run, as `scalerl.fit(run)`.

        Raises:
            CurveError: There are fewer than five evaluations, or the law cannot be fitted to them.
        """
        from scalerl.reading.pages.calls import fit

        return fit(self.path, task=task, compute=compute, r0=r0, exclude_below=exclude_below, prior=prior)

    @checked(habits={"steps": "at='+100' for 100 more", "horizon": "at='4x'", "to": "at='4x'"})
    def forecast(self, at: Any = ("2x", "4x"), task: str | None = None, compute: AxisName | None = None) -> Forecast:
        """Return the forecast for more compute, as `scalerl.forecast(run)`.

        Args:
            at: Multiples of the compute so far ("2x"), more than it ("+100"), or values on the compute axis.
            task: Name of the task; required if there are several.
            compute: Compute axis, as in `curve`.

        Raises:
            CurveError: The curve cannot be fitted.
        """
        from scalerl.reading.pages.calls import forecast

        return forecast(self.path, at, task=task, compute=compute)

    @checked()
    def advise(
        self,
        budget: Any = "2x",
        min_gain: float | None = None,
        *,
        price: float | None = None,
        task: str | None = None,
        compute: AxisName | None = None,
    ) -> Advice:
        """Return what to do with the run, its gain, its price, and how often such advice was right.

        Args:
            budget: Total compute to consider, "2x" or a value on the compute axis.
            min_gain: Smallest gain that is worth the compute, in units of the metric; None: `min_gain` of the run.
            price: Price of a device-hour; None: `price` of the run.
            task: Name of the task; required if there are several.
            compute: Compute axis, as in `curve`.

        Raises:
            CurveError: The curve cannot be fitted.
        """
        from scalerl.reading.pages.calls import advise

        return advise(self.path, budget, min_gain, price=price, task=task, compute=compute)

    @checked()
    def plot(
        self,
        ax: Any = None,
        *,
        task: str | None = None,
        compute: AxisName | None = None,
        scale: Scale = "log",
        dark: bool = False,
    ) -> Any:
        """Draw the points, the fit with its band, and the forecast.

        Args:
            ax: matplotlib axes to draw on; None: new ones.
            task: Name of the task; required if there are several.
            compute: Compute axis, as in `curve`.
            scale: Scale of the compute axis.
            dark: Whether colors are for a dark background.

        Returns:
            The axes.
        """
        from scalerl.reading.pages.drawing import plot

        return plot(self.fit(task, compute), ax, note="; ".join(self.info.notes), scale=scale, dark=dark)

    def resume(
        self, steps: int | None = None, *, from_step: int | None = None, progress: bool = True, trust: bool = False
    ) -> Run:
        """Resume the run from its last checkpoint, or an earlier one; see `scalerl.resume`."""
        return resume(self.path, steps=steps, from_step=from_step, progress=progress, trust=trust)


def _configure(config: Any, fields: dict[str, Any]) -> tuple[RunConfig, list[str]]:
    """Return the configuration, and lines about a default that is only a demonstration."""
    from scalerl.training.config import RunConfig
    from scalerl.training.config.overrides import build_from, plain_values
    from scalerl.training.loop.planned import demonstration

    named = _named(fields)
    if config is not None and not isinstance(config, RunConfig | str | os.PathLike):
        raise ConfigError(
            f"got a {type(config).__name__} as the configuration; allowed: the path of a TOML file, a RunConfig or "
            "None; fields are keywords, train(model=..., data=...)"
        )
    if isinstance(config, RunConfig):
        return (build_from(plain_values(config), named) if named else config), []
    return demonstration(Path(config) if config is not None else None, named)


def _named(fields: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in fields.items()}


def _complete(config: RunConfig, make_run: Callable[[Any], Callable[..., Any]], progress: bool) -> Run:
    """Complete a run that functions of `training.launch` start; the module is imported after the environment is set."""
    from io import StringIO

    prepare_environment(TRAINING_MODULES)
    escape_unknown(sys.stdout)
    import torch
    from rich.console import Console

    from scalerl.training.loop import launch
    from scalerl.training.loop.complete import complete
    from scalerl.training.loop.display import RunDisplay

    display = RunDisplay(config, None if progress else Console(file=StringIO()))
    threads, dtype, stop = torch.get_num_threads(), torch.get_default_dtype(), StopFlag()
    try:
        torch.set_default_dtype(torch.float32)  # a run makes its tensors in it, whatever a notebook has set
        ended = complete(make_run(launch), display, stop)
    finally:
        stop.restore()
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
    for line in ended.closing:
        display.note(line)
    return Run(ended.path)


def _frame(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


__all__ = ["Run", "load", "resume", "train"]
