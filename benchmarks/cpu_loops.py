"""Compares three ways to compute a training step on a CPU: loops in C, torch alone, and torch.compile (inductor).

    python benchmarks/cpu_loops.py [--sizes 165k 3.3M] [--rounds 12] [--out cpu_loops.json]

A step generates 8 prompts x 8 completions x 64 tokens with the torch engine and makes one update from them, as in
trainers.py. It is computed by one thread and measured as CPU time, because machines are seldom quiet. The ways take
turns within a round, and figures are medians over rounds of the ratio to "C". With "compile", decoder layers are
compiled in engine and learner, and attention stays a call of torch in between; "compile, inductor's products" leaves
the matrix products to inductor too, instead of oneDNN as elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

PROMPTS, COMPLETIONS, PROMPT, NEW = 8, 8, 16, 64
WARM_UP = 3
"""Steps of every way before the first round; torch.compile compiles in these."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["165k", "3.3M"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("cpu_loops.json"))
    options = parser.parse_args()
    # without a cache, so that the time to compile is that of a first run
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    from scalerl.core.packages import prepare_environment

    prepare_environment()
    import torch

    torch.set_num_threads(1)
    torch._dynamo.config.cache_size_limit = 64
    from work import machine

    results: dict[str, Any] = {"machine": machine()}
    for size in options.sizes:
        results[size] = measure(size, options.rounds)
        options.out.write_text(json.dumps(results, indent=1) + "\n")


WAYS: dict[str, dict[str, bool]] = {
    "C": {},
    "torch": {"loops": False},
    "attention in C": {"norms": False},
    "compile": {"loops": False, "compiles": True},
    "compile, inductor's products": {"loops": False, "compiles": True, "onednn": False},
}


def measure(size: str, rounds: int) -> dict[str, Any]:
    """Return the CPU seconds of all steps by way and part, and the medians of the ratios to "C"."""
    ways, first_s = {}, {}
    for name, settings in WAYS.items():
        began = cpu_s()
        ways[name] = Way(size, **settings)
        for _ in range(WARM_UP):
            ways[name].step()
        first_s[name] = cpu_s() - began
        print(f"{size} {name}: {first_s[name]:.1f} s of CPU time for the start and {WARM_UP} steps", flush=True)
    seconds: dict[str, dict[str, list[float]]] = {name: {"generate": [], "update": [], "step": []} for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            generate_s, update_s = way.step()
            for part, value in (("generate", generate_s), ("update", update_s), ("step", generate_s + update_s)):
                seconds[name][part].append(value)
    ratios = {
        name: {
            part: round(statistics.median(a / b for a, b in zip(own[part], seconds["C"][part], strict=True)), 3)
            for part in own
        }
        for name, own in seconds.items()
    }
    for name, ratio in ratios.items():
        print(f"{size} {name:30s} step {statistics.median(seconds[name]['step']):.3f} s, to C {ratio}", flush=True)
    return {"first_s": first_s, "seconds": seconds, "time relative to C": ratios}


class Way:
    """An engine and a learner with models of their own, as in the processes of a run."""

    def __init__(
        self, size: str, *, loops: bool = True, norms: bool = True, onednn: bool = True, compiles: bool = False
    ) -> None:
        """Make both.

        Args:
            size: Size of the model.
            loops: Whether the loops in C are used at all.
            norms: Whether those of norms are used.
            onednn: Whether products use oneDNN directly, on AMD.
            compiles: Whether decoder layers are compiled.
        """
        import torch
        from work import random_qwen3

        from scalerl.training.config.recipe import Recipe
        from scalerl.training.engines.engine import Sampling
        from scalerl.training.engines.interrupt import NEVER, LengthRule
        from scalerl.training.engines.local.torch_engine import torch_engine
        from scalerl.training.learner.single import SingleLearner
        from scalerl.training.models.cpu import loops as in_c
        from scalerl.training.models.cpu import onednn as products
        from scalerl.training.models.policy import Policy

        def nothing(model: Any) -> None:
            pass

        left_out = [(products, "accelerate")] if compiles else []
        if not (loops and norms):
            left_out.append((in_c, "accelerate_norms"))
        if not loops:
            left_out.append((in_c, "install_attention"))
        with replaced([(owner, name, nothing) for owner, name in left_out]):
            policy = Policy(random_qwen3(size))
            self.engine = torch_engine(
                Policy(random_qwen3(size)),
                slots=PROMPTS * COMPLETIONS,
                prompt_tokens=PROMPT,
                rule=LengthRule(None, NEVER, NEW),
                sampling=Sampling(),
            )
            self.learner = SingleLearner(policy, Recipe(), packing="auto", micro_batch_tokens=2048)
        self.steps = 0
        if compiles:
            for model in (policy.model, self.engine.decoder.policy.model):
                compile_layers(model, onednn and products.used())
            for layer in self.engine.decoder.cache.layers:  # inductor cannot write into storage of mapped memory
                layer.update = torch.compiler.disable(layer.update)

    def step(self) -> tuple[float, float]:
        """Generate and update; return the CPU seconds of each."""
        began = time.process_time()
        groups = self.generate()
        generated = time.process_time()
        self.update(groups)
        return generated - began, time.process_time() - generated

    def generate(self) -> list[Any]:
        """Return the scored groups of a step; half of the completions pass."""
        import numpy as np

        from scalerl.core.rng import stream_key
        from scalerl.core.types import Group, Prompt, Score, ScoredGroup, Visit
        from scalerl.training.engines.engine import Request, step

        rng = np.random.default_rng(self.steps)
        prompts = [tuple(rng.integers(2, 512, PROMPT).tolist()) for _ in range(PROMPTS)]
        count = PROMPTS * COMPLETIONS
        self.engine.submit(
            [Request((i, 0), prompts[i // COMPLETIONS], stream_key(self.steps, i)) for i in range(count)]
        )
        finished = []
        while self.engine.occupancy().busy:
            finished += step(self.engine)
        finished.sort(key=lambda done: done.id)
        groups = []
        for number, tokens in enumerate(prompts):
            rollouts = tuple(done.rollout for done in finished[number * COMPLETIONS : (number + 1) * COMPLETIONS])
            scores = tuple(Score(1.0 - 2.0 * (i % 2), i % 2 == 0) for i in range(COMPLETIONS))
            visit = Visit(Prompt(str(number), "", tokens, "", "t"), 0, number)
            groups.append(ScoredGroup(Group(visit, rollouts, 0), scores))
        return groups

    def update(self, groups: list[Any]) -> None:
        """Make one update, and give the engine the new weights."""
        from scalerl.training.learner.batch import StepSettings, TrainBatch, collate
        from scalerl.training.recipe.advantages import advantages
        from scalerl.training.recipe.aggregate import token_weights

        rollouts = collate(groups)
        advantages_B = advantages("batch", rollouts.rewards_PG[:, None], rollouts.counted_PG[:, None]).view(-1)
        weights_BT = token_weights("prompt", rollouts.sampled_BT, rollouts.prompt_B)
        settings = StepSettings(version=self.steps)
        self.learner.step(TrainBatch(rollouts, advantages_B, rollouts.sampled_BT, weights_BT, settings))
        self.steps += 1
        self.engine.decoder.load_weights(self.steps, dict(self.learner.policy.weights()))


def compile_layers(model: Any, onednn: bool) -> None:
    """Compile the decoder layers of a model with inductor.

    Args:
        model: The model. Its attention and its cache are called between compiled parts.
        onednn: Whether products use oneDNN as an operator that inductor does not look into.
    """
    import torch
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from scalerl.training.models.policy import decoder_layers
    from scalerl.training.models.torch_compile import compiled

    kind = model.config._attn_implementation
    outside = f"{kind}_outside"
    ALL_ATTENTION_FUNCTIONS.register(outside, torch.compiler.disable(ALL_ATTENTION_FUNCTIONS[kind]))
    ALL_MASK_ATTENTION_FUNCTIONS.register(outside, ALL_MASK_ATTENTION_FUNCTIONS[kind])
    model.config._attn_implementation = outside
    for layer in decoder_layers(model):
        layer.forward = partial(compiled(type(layer).forward), layer)
    product = opaque_product() if onednn else None
    for module in model.modules():
        if product is not None and type(module) is torch.nn.Linear:
            module.forward = partial(_linear, product, module)


def _linear(product: Callable[[Any, Any], Any], layer: Any, x: Any) -> Any:
    return product(x, layer.weight)


@cache
def opaque_product() -> Callable[[Any, Any], Any]:
    """Return x @ weight.T with a gradient, through oneDNN; inductor cannot lower torch's own operator for weights."""
    import torch

    library = torch.library.Library("cpu_loops", "DEF")
    library.define("product(Tensor x, Tensor w) -> Tensor")
    library.impl("product", lambda x, w: torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], ""), "CPU")
    library.impl("product", lambda x, w: x.new_empty(*x.shape[:-1], w.shape[0]), "Meta")
    LIBRARIES.append(library)
    operator = torch.ops.cpu_loops.product.default

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.save_for_backward(x, weight)
            return operator(x, weight)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            x, weight = ctx.saved_tensors
            g, x_NI = grad.reshape(-1, weight.shape[0]), x.reshape(-1, weight.shape[1])
            grad_x = operator(g, weight.t()).view(x.shape)
            if g.shape[1] > x_NI.shape[1]:
                return grad_x, operator(x_NI.t(), g.t()).t().contiguous()
            return grad_x, operator(g.t(), x_NI.t())

    return Product.apply


LIBRARIES: list[Any] = []
"""Definitions of operators, which end with their object."""


def cpu_s() -> float:
    """Return the CPU time of this process and of finished children, such as compilers, in seconds."""
    return sum(os.times()[:4])


@contextmanager
def replaced(attributes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Replace attributes of modules."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in attributes]
    try:
        for owner, name, value in attributes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


if __name__ == "__main__":
    main()
