"""The verifiers by name. A new verifier is a file in this folder and an entry here."""

from __future__ import annotations

from scalerl.tasks import arithmetic, code, custom, gym, math, programs
from scalerl.tasks.base import Verifier, after_thinking

VERIFIERS: dict[str, Verifier] = {
    "arithmetic": Verifier(arithmetic.verify, answer=after_thinking),
    "code": Verifier(code.verify, killable=True, prepare=code.start, limit_s=code.limit_s, spared_cores=0),
    "custom": Verifier(custom.verify, killable=True),
    "math": Verifier(math.verify, killable=True, prepare=math.prepare, answer=math.answer),
    "programs": Verifier(programs.verify, answer=after_thinking),
    "reasoning-gym": Verifier(gym.verify, killable=True, answer=gym.answer),
}
