"""Samples of a torch engine, and their replay with transformers, for the tests of engines and learners."""

import torch
from transformers import DynamicCache

from scalerl.core.rng import stream_key
from scalerl.training.engines.engine import Request, Sampling, step
from scalerl.training.engines.interrupt import NEVER, LengthRule
from scalerl.training.engines.local.torch_engine import torch_engine

STOPPING = Sampling(stop=(1,))


def samples(policy, prompts, slots=3, tokens=14, rule=None, sampling=STOPPING, swaps=(), receive=None):
    """Return [(prompt, rollout)] in the order of the prompts; before the ticks in `swaps`, the version increases."""
    rule = rule or LengthRule(thinking=None, answer_tokens=NEVER, max_tokens=tokens)
    settings = {"rule": rule, "sampling": sampling, "refill": 1, "receive": receive}
    engine = torch_engine(policy, slots=slots, prompt_tokens=max(map(len, prompts)), **settings)
    engine.submit([Request((i, 0), prompt, stream_key("samples", i)) for i, prompt in enumerate(prompts)])
    finished = run_out(engine, swaps)
    assert len(finished) == len(prompts)
    return [(prompts[done.id[0]], done.rollout) for done in finished]


def run_out(engine, swaps=()):
    """Step until all sequences are done, and return them by id; before the ticks in `swaps`, the version increases."""
    finished, tick = [], 0
    while engine.occupancy().busy:
        if tick in swaps:
            engine.swap(engine.version + 1)
        finished += step(engine)
        tick += 1
    return sorted(finished, key=lambda done: done.id)


@torch.no_grad()
def replay(policies, prompt, rollout, temperature=1.0):
    """Feed tokens one by one: position t-1 with the weights that sampled token t and the cache so far."""
    cache, fed, logps = DynamicCache(config=policies[0].config), list(prompt), []
    for token, version in zip(rollout.tokens.tolist(), rollout.versions.tolist(), strict=True):
        model = policies[version].model
        logits = model(input_ids=torch.tensor([fed]), past_key_values=cache, use_cache=True).logits[0, -1]
        logps.append((logits.float() / temperature).log_softmax(-1)[token])
        fed = [token]
    return torch.stack(logps).numpy()


@torch.no_grad()
def log_probabilities(policy, prompt, rollout):
    """Return the log-probability of each token of a rollout, from one pass over the whole sequence."""
    tokens = torch.tensor([*prompt, *rollout.tokens.tolist()], device=policy.device)
    logp_TV = policy.logits(policy.hidden(tokens[None])[0]).log_softmax(-1)[len(prompt) - 1 : -1]
    return logp_TV.gather(1, tokens[len(prompt) :, None])[:, 0].float().cpu().numpy()
