"""One run, whole: recipe, model, data, evaluation, machine. Read from TOML and dotted overrides; it loads no torch.

The resolved configuration is saved as config.toml in the run directory and re-runs as it is.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scalerl.data import ArithmeticTask, GeneratedData, PromptFile, task_shares
from scalerl.parts import ConfigError, Part, build, nearest, records
from scalerl.recipe import SCALERL, AdamW, Count, Interruption, Natural, Recipe, Share, max_lag, replace


class WarmStart(Part):
    """Supervised training of the tiny model on noisy reasoning traces, before RL."""

    steps: Count = 1000
    """Updates."""
    batch: Count = 64
    """Traces an update."""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    """Peak rate: linear warm-up over 50 updates, then linear decay to a tenth."""
    step_noise: Share = 0.45
    """Probability that a step of a trace has its result replaced by a uniform digit (0.15 of it in the first 60 %)."""
    ramble: Share = 0.08
    """Probability, after each step, of a ramble of `~`."""
    endless: Share = 0.1
    """Share of the rambles that never end (they teach the model to overrun, so that length control has work)."""
    seed: Natural = 0
    """Seed of weights and traces; runs with different seeds of their own may share one warm start."""


class TinyModel(Part):
    """A tiny Qwen3 made from scratch and warm-started on traces of the run's tasks; cached after the first time."""

    kind: Literal["tiny"] = "tiny"
    width: Count = 64
    """Hidden size; a multiple of 2 x heads."""
    layers: Count = 2
    """Decoder layers."""
    heads: Count = 2
    """Attention heads."""
    experts: Natural = 0
    """Experts in every layer's MLP (a Qwen3-MoE); 0: a dense MLP."""
    active_experts: Count = 2
    """Experts a token uses, at most `experts`; they share the dense MLP's width, so that a token costs the same."""
    warm_start: WarmStart = WarmStart()
    """How it learns to write traces before RL."""

    @model_validator(mode="after")
    def _check(self) -> TinyModel:
        if self.experts and self.active_experts > self.experts:
            raise ValueError(f"active_experts: got {self.active_experts}; allowed: 1 to experts = {self.experts}")
        if self.experts and 4 * self.width % self.active_experts:
            raise ValueError(
                f"active_experts: got {self.active_experts}; allowed: a divisor of 4 x width = {4 * self.width}, the "
                "width of the MLP that they share"
            )
        return self


class HuggingFaceModel(Part):
    """Any causal language model that transformers can load, with its tokenizer."""

    kind: Literal["hf"] = "hf"
    path: str
    """A directory with config, tokenizer and weights, or a name on the hub."""
    revision: str = "main"
    """Branch, tag or commit, for a name on the hub."""


class Evaluation(Part):
    """Held-out mean@k on a schedule, step 0 included; its time is kept apart from training compute."""

    every: Count = 100
    """Training steps between evaluations."""
    prompts: Count = 1000
    """Held-out prompts of each task, chosen by a hash of their content and never trained on."""
    samples: Count = 16
    """k: samples of each prompt."""


FULL_SLOTS = 256
"""Sequences from which on a decode step's cost grows with their number (a tiny model on one CPU core)."""


class Rollouts(Part):
    """How the generator runs."""

    slots: Natural = 0
    """Sequences decoded together; 0: as many as a batch has rollouts, small batches up to 256 if staleness allows."""
    refill: Natural = 0
    """Free slots that are waited for before new sequences are prefilled; 0: a sixteenth of the slots, 1: at once."""
    schedule: Literal["deterministic", "eager"] = "deterministic"
    """deterministic: new weights become active at a tick fixed by the data; eager: as soon as they arrive."""
    lag_ticks: int = Field(default=-1, ge=-1)
    """Deterministic schedule: decode steps from a batch's completion to the use of its weights; -1: measure."""


class Learner(Part):
    """How the trainer runs."""

    micro_batch_tokens: Count = 16_384
    """Padded tokens of one forward and backward pass."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""


class Hardware(Part):
    """The machine."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where torch sees one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Weights of the forward pass; auto: float32 on CPU, bfloat16 on GPU (the optimiser keeps float32 masters)."""
    generator_threads: Natural = 0
    """CPU threads of the generator process; 0: half of the cores."""
    trainer_threads: Natural = 0
    """CPU threads of the trainer process; 0: half of the cores."""


class Checkpointing(Part):
    """When the whole truth is written to disk."""

    every: Count = 50
    """Training steps between checkpoints."""
    keep: Count = 2
    """Checkpoints kept."""


class RunConfig(Part):
    """Everything a run is."""

    seed: Natural = 0
    """Seed of sampling, prompt order and interruption points."""
    steps: Count = 1000
    """Updates to train for."""
    recipe: Recipe = SCALERL
    """What to run."""
    model: Annotated[TinyModel | HuggingFaceModel, Field(discriminator="kind")] = TinyModel()
    """Which policy: tiny or hf."""
    data: Annotated[GeneratedData | PromptFile, Field(discriminator="kind")] = ArithmeticTask()
    """Which prompts: arithmetic, programs, mixed (both of them) or file."""
    evaluation: Evaluation = Evaluation()
    """The held-out curve."""
    rollouts: Rollouts = Rollouts()
    """The generator."""
    learner: Learner = Learner()
    """The trainer."""
    hardware: Hardware = Hardware()
    """The machine."""
    checkpoint: Checkpointing = Checkpointing()
    """Checkpoints."""

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        if isinstance(self.model, TinyModel) and isinstance(self.data, PromptFile):
            raise ValueError(
                "data.kind: got 'file' with model.kind 'tiny', which knows only the tasks that "
                "are generated; give --model"
            )
        return self

    @property
    def tasks(self) -> list[str]:
        """Names of the generated tasks, each with a held-out set of its own; of a file there is one, by its name."""
        if isinstance(self.data, PromptFile):
            return [self.data.reward or self.data.task]
        return [task.kind for task, _ in task_shares(self.data)]

    @property
    def slots(self) -> int:
        """Sequences the generator decodes together.

        A decode step of a few sequences costs nearly what one of many does, so small batches share it; half of the
        allowed staleness is left to the schedule.
        """
        batch = self.recipe.completions_per_step
        most = batch * max(1, max_lag(self.recipe.off_policy) // 2)
        return self.rollouts.slots or max(batch, min(FULL_SLOTS, most))

    def derived_sizes(self) -> list[str]:
        """Return what follows from the sizes given, in words, for the start of a run."""
        recipe, checks = self.recipe, self.evaluation
        total = recipe.completions_per_step
        longest = recipe.length.max_tokens
        each = f" of each of {' and '.join(self.tasks)}" if len(self.tasks) > 1 else ""
        return [
            f"{recipe.name}: {self.steps} steps of {recipe.prompts_per_step} prompts x {recipe.generations_per_prompt} "
            f"generations = {total} completions of up to {longest} tokens (at most {total * longest:,} tokens a step)",
            f"{recipe.off_policy.kind}: tokens at most {max_lag(recipe.off_policy)} updates old; {self.slots} "
            f"sequences decoded together; {self.learner.micro_batch_tokens:,} padded tokens a micro-batch",
            f"evaluation every {checks.every} steps: {checks.prompts} held-out prompts{each} x {checks.samples} "
            "samples",
        ]


LAB = RunConfig(
    steps=480,
    recipe=replace(
        SCALERL,
        name="scalerl-lab",
        prompts_per_step=16,
        length=Interruption(thinking_tokens=(50, 60), answer_tokens=9, phrase="</think>"),
        optimizer=AdamW(learning_rate=6e-5, warmup_steps=20),
    ),
    evaluation=Evaluation(every=15, prompts=512, samples=4),
    learner=Learner(micro_batch_tokens=8192),
    checkpoint=Checkpointing(every=25),
)

QUICK = replace(
    LAB,
    steps=240,
    recipe=replace(LAB.recipe, optimizer=replace(LAB.recipe.optimizer, learning_rate=1.2e-4)),
    evaluation=Evaluation(every=8, prompts=512, samples=2),
)

PRESETS = {"lab": LAB, "quick": QUICK, "scalerl": RunConfig()}
"""lab: the embedded default, minutes on two cores. quick: fewer steps at a higher rate, for studies of many
runs. scalerl: the paper's sizes, for a model and data of your own."""

ALIASES = {
    "model": ("model", "path"),
    "data": ("data", "path"),
    "task": ("data", "task"),
    "reward": ("data", "reward"),
    "device": ("hardware", "device"),
    "seed": ("seed",),
    "steps": ("steps",),
}
"""Short names of the fields that most users set."""

_ALIAS_KINDS = {"model": ("model", "hf"), "data": ("data", "file")}


def read_config(file: Path | None, overrides: Sequence[str]) -> RunConfig:
    """Read a TOML file and command-line overrides into one validated configuration.

    Args:
        file: TOML with the sections of RunConfig, and optionally `preset = "lab" | "scalerl"`; None: the preset alone.
        overrides: words as typed, `--recipe.loss.max_ratio 4` or `--recipe.loss=gspo`, or the short names in ALIASES.

    Raises:
        ConfigError: unreadable file, unknown key, wrong type or value out of range.
    """
    values = _read_toml(file) if file else {}
    source = str(file) if file else "command line"
    typed = _read_overrides(overrides)
    preset = typed.pop("preset", values.pop("preset", None))
    if preset is None:
        merged = merge(values, typed)
        preset = "scalerl" if "path" in merged.get("data", {}) else "lab"
    if preset not in PRESETS:
        raise ConfigError(f"preset: got {preset!r}{nearest(str(preset), PRESETS)}; allowed: {', '.join(PRESETS)}")
    base = PRESETS[preset].model_dump()
    build(RunConfig, merge(base, values), source)  # the file's own mistakes are reported with the file's name
    return build(RunConfig, merge(merge(base, values), typed), "command line" if typed else source)


def parse_config(text: str, source: str) -> RunConfig:
    """Read a whole configuration, as `to_toml` wrote it, from text."""
    return build(RunConfig, tomllib.loads(text), source)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` laid over it; a change of `kind` drops the fields of the other kind."""
    out = dict(base)
    for key, value in changes.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, str) and "kind" in old:
            value = {"kind": value}
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            other_kind = "kind" in value and value["kind"] != old.get("kind")
            out[key] = dict(value) if other_kind else merge(old, value)
        else:
            out[key] = value
    return out


def to_toml(config: RunConfig) -> str:
    """Return the configuration as TOML that `read_config` reads back to an equal value."""
    import tomli_w

    return tomli_w.dumps(_without_nulls(config.model_dump(mode="json")))


def field_lines(cls: type[Part] = RunConfig, prefix: str = "") -> list[tuple[str, str, str]]:
    """Return (dotted name, default, documentation) of every field, for `scalerl train --help`."""
    lines = []
    for name, field in cls.model_fields.items():
        members = records(field.annotation)
        if not members:
            default = "(needed)" if field.is_required() else str(field.default)
            lines.append((prefix + name, default, field.description or ""))
        for member in members:
            label = f"{prefix}{name}" + (f"[{member.model_fields['kind'].default}]" if len(members) > 1 else "")
            lines.append((label, "", (member.__doc__ or "").split("\n")[0]))
            lines += [line for line in field_lines(member, f"{prefix}{name}.") if not line[0].endswith(".kind")]
    return lines


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; give the path of a TOML configuration, or none for the lab") from None
    except (IsADirectoryError, PermissionError) as error:
        raise ConfigError(f"{file}: {error.strerror}; give the path of a readable TOML configuration") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None


def _read_overrides(words: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not word.startswith("--"):
            raise ConfigError(f"got {word!r}; allowed: one TOML file, then options of the form --name value")
        name, equals, text = word[2:].partition("=")
        if not equals:
            if not queue:
                raise ConfigError(f"--{name}: a value is needed and none was given")
            text = queue.pop(0)
        if name in _ALIAS_KINDS:
            section, kind = _ALIAS_KINDS[name]
            values.setdefault(section, {})["kind"] = kind
        _put(values, ALIASES.get(name) or _known_path(name), _parse(text))
    return values


def _known_path(name: str) -> tuple[str, ...]:
    """Check a dotted name against all that exist, so that a typo names the nearest one wherever it lives."""
    path = name.replace("-", "_")
    known = {line[0].split("[")[0] for line in field_lines()} | {"preset"}
    known |= {f"{line[0].split('[')[0]}.kind" for line in field_lines() if "[" in line[0]}
    if path in known:
        return tuple(path.split("."))
    tail = path.split(".")[-1]
    same_tail = sorted(k for k in known if k.split(".")[-1] == tail)
    hint = f" (did you mean --{same_tail[0]}?)" if same_tail else nearest(path, known).replace("'", "")
    raise ConfigError(f"unknown option --{name}{hint}; `scalerl train --help` lists all")


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        inner = values.setdefault(step, {})
        if isinstance(inner, str):
            inner = values[step] = {"kind": inner}
        values = inner
    values[path[-1]] = value


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items()}
    return "none" if value is None else value
