"""`scalerl new`: prints a configuration for a model, prompts and a number of GPUs, with the planner's split."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from scalerl.cli.parsing import Parser, count, parse_with_config
from scalerl.cli.terminal import say

if TYPE_CHECKING:
    from scalerl.config import RunConfig
    from scalerl.config.base import Part

DESCRIPTION = """print a configuration for your model and prompts, with the split of GPUs, the slots and the micro-batch
that `scalerl plan` finds: scalerl new --model PATH --data FILE --gpus 8 > run.toml. From 8 GPUs on, the sizes are
the paper's, else those of the preset `small`. Every field of the configuration is an option, as for `scalerl train`."""

PARTS, MICRO_BATCHES = (1, 2, 4, 8), (16_384, 8_192, 4_096)
"""GPUs of an engine and tokens of a micro-batch that are tried, in this order."""
NODE = 8
"""GPUs of one machine; more need a Ray cluster that is running."""


def new(words: list[str]) -> int:
    """Run `scalerl new`; return the exit code.

    Raises:
        ConfigError: An option is invalid, or the model does not fit on the GPUs.
    """
    usage = "scalerl new --model PATH --data FILE --gpus N [--any.field VALUE ...]"
    parser = Parser(prog="scalerl new", usage=usage, description=DESCRIPTION, allow_abbrev=False)
    parser.takes_fields = True
    words_of_gpus = "GPUs of the run; 0: train on the CPU. placement.gpu_gb is the memory of each, 80 GB by default"
    parser.add_argument("--gpus", type=partial(count, least=0), required=True, metavar="N", help=words_of_gpus)
    _, options, fields = parse_with_config(parser, words)
    from scalerl.config import TinyModel, read_config
    from scalerl.core.errors import ConfigError

    preset, gpus = "scalerl" if options.gpus >= NODE else "small", options.gpus
    own = ["--evaluation.prompts", "auto", "--evaluation.samples", "4", "--hardware.device", "cuda" if gpus else "cpu"]
    config = read_config(None, ["--preset", preset, *own, *fields])
    if isinstance(config.model, TinyModel):
        raise ConfigError("new: got no model; allowed: --model PATH, with --data FILE")
    config, about = _on_gpus(config, gpus) if gpus else (config, [])
    import tomli_w

    table = {"preset": "scalerl", **written(config)}
    say(*tomli_w.dumps(table).split("\n"), *(f"# {line}" for line in [*config.derived_sizes(), *about]))
    return 0


def _on_gpus(config: RunConfig, gpus: int) -> tuple[RunConfig, list[str]]:
    """Return the configuration with vLLM on these GPUs, and lines on memory and speed."""
    from scalerl.cli.plan import in_words
    from scalerl.cluster.layout import check, lay_out, lines
    from scalerl.cluster.plan import Given, best_split, lengths_of
    from scalerl.cluster.speed import GPUS, Assumptions
    from scalerl.config.base import replace
    from scalerl.core.errors import ConfigError
    from scalerl.models.sizes import sizes_of

    given, lengths = Given(sizes_of(config), Assumptions(GPUS["H100"])), lengths_of(config, None)
    on_ray = {"backend": "ray", "ray_address": "local" if gpus <= NODE else "auto"} if gpus > 2 else {}
    problem: ConfigError | None = None
    parts_of = [parts for parts in PARTS if parts < max(2, gpus)]
    for parts, tokens, share in product(parts_of, MICRO_BATCHES, (1, 2, 4, 8, 16) if gpus == 1 else (1,)):
        place = replace(config.placement, engine="vllm", tensor_parallel=parts, gpus=gpus, **on_ray)
        learner = replace(
            config.learner, gradient_checkpointing=True, accumulate="sharded" if gpus > 2 else "local",
            micro_batch_tokens=config.learner.micro_batch_tokens or tokens,
        )  # fmt: skip
        planned, words = replace(config, placement=place, learner=learner), list[str]()
        try:
            if gpus > 1:
                best = (found := best_split(planned, given, lengths, gpus))[0]
                place = replace(place, trainer_ranks=best.trainer_ranks, generators=best.generators)
                planned = replace(planned, placement=place, rollouts=replace(planned.rollouts, slots=best.slots))
                words = in_words(lengths, found[:1], [f"assumed: {given.assumed.line}"], config.evaluation.every, None)
            else:
                slots = max(1, config.slots // share)
                planned = replace(planned, rollouts=replace(planned.rollouts, slots=slots))
            layout = lay_out(planned, given.found)
            check(planned, layout)
        except ConfigError as error:
            problem = problem or error
            continue
        return planned, [*lines(planned, layout), *words]
    raise ConfigError(f"{problem}; or train adapters with --model.lora.rank 32, which one trainer GPU can hold")


def written(part: Part) -> dict[str, Any]:
    """Return the values of a record that differ from its defaults, with its kind, as TOML values."""
    from scalerl.config.base import Part

    def plain(value: Any) -> Any:
        if isinstance(value, tuple) and value and isinstance(value[0], Part):
            return plain(value[0]) if len(value) == 1 else [plain(one) for one in value]
        return written(value) if isinstance(value, Part) else "none" if value is None else value

    defaults = {name: field.get_default(call_default_factory=True) for name, field in type(part).model_fields.items()}
    return {name: plain(value) for name, value in part if name == "kind" or value != defaults[name]}
