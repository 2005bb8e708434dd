"""The verifiers by name. A new verifier is a file in this folder and an entry here."""

from __future__ import annotations

from scalerl.tasks import custom, gym, math
from scalerl.tasks.base import Verifier
from scalerl.tasks.code import judge
from scalerl.tasks.lab import arithmetic, programs

VERIFIERS: dict[str, Verifier] = {
    "arithmetic": Verifier(arithmetic.verify),
    "code": Verifier(judge.verify, killable=True, prepare=judge.start, limit_s=judge.limit_s, spared_cores=0),
    "custom": Verifier(custom.verify, killable=True),
    "math": Verifier(math.verify, killable=True, prepare=math.prepare),
    "programs": Verifier(programs.verify),
    "reasoning-gym": Verifier(gym.verify, killable=True),
}
