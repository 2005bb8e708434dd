"""Write trl_log/trainer_state.json: a log in the format of TRL's GRPO trainer, with synthetic numbers on a known curve.

python examples/make_trl_log.py
"""

import json
import random
from pathlib import Path

ROOT = Path(__file__).parent / "trl_log"
START, CEILING, MIDPOINT, STEEPNESS = 0.22, 0.71, 120.0, 1.6
"""R0, A, C_mid (training steps) and B of the law that the evaluations follow."""


def state(steps=800, every=40, logged=10, seed=0):
    """Return a trainer state: a row every `logged` training steps, and one per evaluation on 500 prompts."""
    rng = random.Random(seed)
    history, tokens = [], 0
    for step in range(steps + 1):
        rate = START + (CEILING - START) / (1 + (MIDPOINT / step) ** STEEPNESS) if step else START
        if step % logged == 0 and step:
            length = round(180 + 0.3 * step + rng.gauss(0, 6), 1)
            tokens += round(64 * length * logged)
            history.append(
                {
                    "step": step,
                    "reward": round(rate + rng.gauss(0, 0.03), 4),
                    "completions/mean_length": length,
                    "num_tokens": float(tokens),
                    "step_time": round(length / 16 + rng.gauss(0, 0.2), 3),
                }
            )
        if step % every == 0:
            passed = sum(rng.random() < rate for _ in range(500)) / 500
            history.append({"step": step, "eval_reward": passed, "eval_runtime": 21.5})
    return {"global_step": steps, "max_steps": steps, "log_history": history}


if __name__ == "__main__":
    ROOT.mkdir(exist_ok=True)
    rows = state()
    lines = ",\n  ".join(json.dumps(row) for row in rows.pop("log_history"))
    text = json.dumps(rows)[:-1] + f', "log_history": [\n  {lines}\n]}}\n'
    (ROOT / "trainer_state.json").write_text(text)
    print(f"{ROOT / 'trainer_state.json'}: {len(text)} bytes")
