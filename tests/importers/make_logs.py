"""Write the logs in logs/ again, each with the library of its format; not a test. See logs/README.md."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

LOGS = Path(__file__).parent / "logs"


def trl() -> None:
    """Write four runs of TRL's GRPOTrainer on a tiny model: complete, resumed, two evaluation sets, TensorBoard."""
    from tiny_grpo import digits, grpo, prompts, short

    two = {"sums": prompts(16), "few": prompts(8)}
    with TemporaryDirectory() as place:
        grpo(f"{place}/whole", steps=12, eval_on_start=True).train()
        grpo(f"{place}/resumed", steps=8).train()
        grpo(f"{place}/resumed", steps=12).train(resume_from_checkpoint=True)
        grpo(f"{place}/two", steps=6, rewards=[digits, short], evaluation=two, eval_steps=2).train()
        os.environ["TENSORBOARD_LOGGING_DIR"] = f"{place}/events"
        grpo(f"{place}/board", steps=12, report_to="tensorboard").train()
        for name in ("whole", "resumed", "two"):
            last = max(Path(place, name).glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
            state = json.loads((last / "trainer_state.json").read_text())
            (LOGS / f"trl-{name}").mkdir(exist_ok=True)
            (LOGS / f"trl-{name}/trainer_state.json").write_text(json.dumps(state, indent=1) + "\n")
        shutil.rmtree(LOGS / "trl-tensorboard", ignore_errors=True)
        (LOGS / "trl-tensorboard").mkdir()
        for number, file in enumerate(sorted(Path(place, "events").rglob("*tfevents*"))):
            shutil.copy(file, LOGS / "trl-tensorboard" / f"events.out.tfevents.{number}")


if __name__ == "__main__":
    trl()
