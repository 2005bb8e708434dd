"""The verifiers by name. A new verifier is a file in this folder and an entry here."""

from __future__ import annotations

from scalerl.training.rewards import arithmetic, code, custom, judge, math, programs, reasoning_gym
from scalerl.training.rewards.base import Verifier

VERIFIERS: dict[str, Verifier] = {
    "arithmetic": Verifier(arithmetic.verify),
    "code": Verifier(code.verify, killable=True, prepare=code.start, limit_s=code.limit_s, spared_cores=0),
    "custom": Verifier(custom.verify, killable=True),
    "judge": Verifier(judge.verify, prepare=judge.prepare, threads=lambda scoring: scoring.judge.concurrency),
    "math": Verifier(math.verify, killable=True, prepare=math.prepare, modules=("math_verify",)),
    "programs": Verifier(programs.verify),
    "reasoning-gym": Verifier(reasoning_gym.verify, killable=True, modules=("reasoning_gym",)),
}
