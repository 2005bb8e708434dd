"""Number of cores and GPUs that each kind of process requests from Ray."""

from __future__ import annotations

from scalerl.config.run import RunConfig


def engine_resources(config: RunConfig) -> dict[str, float]:
    """Return num_cpus and num_gpus of one generator."""
    placement = config.placement
    if config.hardware.device == "cuda":
        return {"num_cpus": 1, "num_gpus": placement.gpus_of_a_generator}
    return {"num_cpus": max(1, config.hardware.generator_threads) / placement.engines, "num_gpus": 0}


def rank_resources(config: RunConfig) -> dict[str, float]:
    """Return num_cpus and num_gpus of one trainer rank."""
    if config.hardware.device == "cuda":
        return {"num_cpus": 1, "num_gpus": 1}
    return {"num_cpus": max(1, config.hardware.trainer_threads) / config.placement.trainer_ranks, "num_gpus": 0}


def scorer_resources(config: RunConfig) -> dict[str, float]:
    """Return num_cpus and num_gpus of one scorer actor: one core per worker."""
    return {"num_cpus": config.scoring.workers or 1, "num_gpus": 0}


def run_resources(config: RunConfig) -> dict[str, float]:
    """Return the cores (CPU) and GPUs of all actors of a run; a single trainer process is not an actor."""
    placement = config.placement
    engines = 0 if placement.servers else placement.engines
    ranks = placement.trainer_ranks if placement.trainer_ranks > 1 else 0
    engine, rank = engine_resources(config), rank_resources(config)
    return {
        "CPU": engines * engine["num_cpus"]
        + ranks * rank["num_cpus"]
        + placement.scorers * scorer_resources(config)["num_cpus"],
        "GPU": engines * engine["num_gpus"] + ranks * rank["num_gpus"],
    }
