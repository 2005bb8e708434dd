"""The model of a run: from its configuration to the policy that is trained and the weights that engines get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scalerl.core.errors import ConfigError, outcome
from scalerl.core.status import Heartbeat
from scalerl.training.config import HuggingFaceModel, TinyModel
from scalerl.training.config.base import chosen
from scalerl.training.config.data import TaskData
from scalerl.training.config.placement import Placement
from scalerl.training.config.recipe import Custom, Recipe
from scalerl.training.config.run import Scoring
from scalerl.training.engines.build import Decoding, GeneratorSpec
from scalerl.training.engines.engine import Sampling
from scalerl.training.engines.interrupt import LengthRule
from scalerl.training.engines.local.torch_engine import check_cached_logps
from scalerl.training.engines.schedule import schedule_of
from scalerl.training.engines.testing import check_engine_plugin
from scalerl.training.learner.checkpoint import save_state
from scalerl.training.loop.warm_start import warm_start, warm_start_directory, warm_start_fault
from scalerl.training.models.build import PolicySpec
from scalerl.training.models.files import check_model_files
from scalerl.training.models.loading import load_config
from scalerl.training.models.policy import Policy
from scalerl.training.models.quantized import DEQUANTIZE, method_of
from scalerl.training.models.routing import can_record, routing_of
from scalerl.training.models.sizes import ModelSizes, of_config, sizes_of
from scalerl.training.placement.sizes import RunSizes


def model_path_of(
    model: TinyModel | HuggingFaceModel,
    data: Sequence[TaskData],
    threads: int,
    run: Path,
    note: Callable[[str], None],
) -> str:
    """Return the path of the run's model; the lab's tiny model is warm-started first, which takes minutes.

    Args:
        model: The model.
        data: Tasks of the run, which the tiny model is taught.
        threads: CPU threads of a warm start.
        run: The run directory, whose status has the progress of the warm start.
        note: Function that gets lines for the user.

    Raises:
        ConfigError: Files are missing or damaged, or the warm start did not learn its task.
    """
    if isinstance(model, HuggingFaceModel):
        check_model_files(model.path)
        return model.path
    directory = warm_start_directory(model, data)
    if not (problem := warm_start_fault(directory)):
        return str(directory)
    if directory.exists():
        note(f"warm start: {directory} is damaged, so it is trained again: {problem}")
    note(f"warm start: training a tiny Qwen3 on noisy traces (once; kept in {directory})")
    steps = model.warm_start.steps
    with Heartbeat(run, phase="warm start") as beating:

        def report(row: dict[str, float]) -> None:
            note("  warm start " + "  ".join(f"{name} {value:g}" for name, value in row.items()))
            if "step" in row:
                beating.phase("warm start", f"update {row['step']:.0f} of {steps} on worked examples")

        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        warm_start(model, data, directory, report)
        torch.set_num_threads(before)
    return str(directory)


def known_sizes(model: TinyModel | HuggingFaceModel) -> ModelSizes | None:
    """Return the sizes of a model before it is loaded; None if its config.json does not tell them.

    Only the configuration of a model on the hub is downloaded.
    """
    try:
        return sizes_of(model).sizes
    except ConfigError:  # a problem of its files is one of loading it, which comes next
        if not isinstance(model, HuggingFaceModel) or Path(model.path).exists():
            return None
    name, revision = model.path, model.revision
    # errors of the hub, and of code that the configuration names, are those of loading the model, which comes next
    found = outcome(lambda: of_config(load_config(name, revision)[0].to_dict().get))
    return None if found.exception() is not None else found.result()


def generator_spec(
    sizes: RunSizes,
    scoring: Scoring,
    model: PolicySpec,
    policy: Policy,
    rule: LengthRule,
    stop: tuple[int, ...],
    run: Path,
    **parts: Any,
) -> GeneratorSpec:
    """Return what the engines are made from.

    Args:
        sizes: Sizes of the run.
        scoring: Settings of verifiers.
        model: The model, as each engine loads it.
        policy: The same, loaded and without adapters.
        rule: Limits of a completion.
        stop: Token ids that end a sequence.
        run: Directory for logs.
        parts: Other fields.
    """
    recipe = sizes.recipe
    return GeneratorSpec(
        policy=model,
        vocabulary=policy.vocab_size,
        sizes=policy.sizes,
        device=sizes.hardware.device,
        threads=chosen(sizes.hardware.generator_threads),
        placement=sizes.placement,
        scoring=scoring,
        decoding=Decoding(
            slots=sizes.slots,
            evaluated=sizes.most_evaluated,
            seed=sizes.seed,
            longest_prompt=sizes.longest_prompt,
            rule=rule,
            sampling=Sampling(recipe.temperature, recipe.top_p, stop),
            experts=recipe.routing_replay == "on",
        ),
        schedule=schedule_of(sizes),
        group_size=recipe.generations_per_prompt,
        save=save_state,
        run=run,
        **parts,
    )


def check_length(policy: Policy, rule: LengthRule, longest_prompt: int) -> None:
    """Refuse prompts and completions that need more positions than the model has.

    Raises:
        ConfigError: The longest prompt and completion together are too long.
    """
    limit, needed = policy.positions, longest_prompt + rule.capacity
    if limit is not None and needed > limit:
        raise ConfigError(
            f"recipe.length (eval: --max-tokens): the longest prompt ({longest_prompt} tokens) and completion "
            f"({rule.capacity}) need {needed} positions; this model has {limit}. Lower this limit or "
            "data.max_prompt_tokens"
        )


def check_sampled(
    placement: Placement, recipe: Recipe, schedule: str, device: str, spec: PolicySpec, policy: Policy
) -> None:
    """Refuse a model or a custom engine that would sample incorrectly; vLLM is checked by replay during the run.

    Args:
        placement: Engine and servers.
        recipe: Whether experts are replayed.
        schedule: Name of the schedule; the deterministic one needs an engine that decodes a step at each poll.
        device: Device on which a custom engine may load the model.
        spec: The model, as each engine loads it.
        policy: The same, loaded.
    """
    engine, replay = placement.engine, recipe.routing_replay == "on"
    if replay and not can_record(policy):
        kind = "whose routers do not return the chosen experts" if policy.sizes.experts else "which has no experts"
        raise ConfigError(
            f"recipe.routing_replay: got 'on' for {type(policy.model).__name__}, {kind}; allowed: off, or a mixture "
            "such as Mixtral, Qwen3-MoE, OLMoE or GPT-OSS (docs/models.md)"
        )
    if engine == "vllm" and not placement.servers and (table := load_config(spec.path, spec.revision)[1]):
        raise ConfigError(
            f"placement.engine: got 'vllm' with {spec.path} in {method_of(table)}, whose weights a server cannot "
            f"replace with trained ones; allowed: torch, or a directory in full precision. {DEQUANTIZE}"
        )
    if engine == "torch":
        check_cached_logps(policy)
    elif isinstance(engine, Custom):
        load = partial(spec.load, device)
        rollouts = check_engine_plugin(engine, policy, load, spec.path, schedule == "deterministic")
        if replay and any(rollout.experts is None for rollout in rollouts):
            raise ConfigError(
                f"recipe.routing_replay: got 'on' with placement.engine {engine.function!r}, whose rollouts have no "
                "`experts`; allowed: off, or an engine that reports the experts that it used"
            )
    if replay and engine == "vllm" and routing_of(policy).layers != policy.sizes.layers:
        raise ConfigError(
            f"recipe.routing_replay: got 'on' for a model with experts in {routing_of(policy).layers} of its "
            f"{policy.sizes.layers} layers, but vLLM reports experts of all; allowed: off, or placement.engine = "
            "'torch'"
        )
