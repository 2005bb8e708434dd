"""Advantages from a random reward, for the control arm of docs/replication.md."""

import zlib

import torch


def advantages(rewards_PG):
    """Return the centered advantages of rewards that are 0 or 1 with equal chance, whatever the true rewards.

    P prompts, G rollouts of each. The draws depend on the batch only, so equal commands give equal bits.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(rewards_PG.cpu().numpy().tobytes()))
    random_PG = torch.randint(0, 2, rewards_PG.shape, generator=generator).to(rewards_PG)
    centered_PG = random_PG - random_PG.mean(dim=1, keepdim=True)
    return centered_PG / centered_PG.std().clamp(min=1e-6)
