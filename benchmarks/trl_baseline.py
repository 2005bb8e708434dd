"""Runs TRL's GRPOTrainer with the CISPO loss on the work of trainers.py, in an environment with TRL.

    python benchmarks/trl_baseline.py MODEL PROMPTS.jsonl STEPS WARM_UP [SETTINGS]

SETTINGS: other values of GRPOConfig, as JSON. Prints a line for each step, and as the last one {"samples_per_s": ...},
over the steps after the warm-up.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from rewards import even_start
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class StepTimes(TrainerCallback):
    """Prints the duration of every step."""

    def __init__(self, samples):
        self.samples, self.times = samples, []

    def on_train_begin(self, args, state, control, **rest):
        """Note the time."""
        self.times.append(time.perf_counter())

    def on_step_end(self, args, state, control, **rest):
        """Note the time, and print the step."""
        self.times.append(time.perf_counter())
        step_s = self.times[-1] - self.times[-2]
        print(json.dumps({"step": state.global_step, "step_s": step_s, "samples": self.samples}), flush=True)


def main():
    model, prompts, steps, warm_up = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    rows = [{"prompt": json.loads(line)["prompt"]} for line in Path(prompts).read_text().splitlines()]
    cuda, settings = torch.cuda.is_available(), json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}
    with tempfile.TemporaryDirectory() as scratch:
        values = {
            "output_dir": scratch, "use_cpu": not cuda, "bf16": cuda, "loss_type": "cispo", "epsilon_high": 5.0,
            "beta": 0.0, "per_device_train_batch_size": 64, "num_generations": 8, "max_completion_length": 64,
            "temperature": 1.0, "top_k": 0, "max_steps": steps, "learning_rate": 5e-7, "logging_steps": 1000,
            "save_strategy": "no", "report_to": [], "gradient_checkpointing": False, "disable_tqdm": True,
        }  # fmt: skip
        config = GRPOConfig(**(values | settings))
        samples = config.per_device_train_batch_size * config.gradient_accumulation_steps
        clock = StepTimes(samples)
        trainer = GRPOTrainer(  # FP32 weights, as scalerl's masters; on a GPU under autocast
            model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=even_start, args=config, train_dataset=Dataset.from_list(rows), callbacks=[clock],
        )  # fmt: skip
        trainer.train()
    seconds = clock.times[-1] - clock.times[warm_up]
    print(json.dumps({"samples_per_s": samples * (len(clock.times) - 1 - warm_up) / seconds}))


if __name__ == "__main__":
    main()
