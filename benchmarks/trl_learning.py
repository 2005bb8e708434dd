"""Trains the lab's model with TRL's GRPOTrainer and evaluates it as `scalerl` does (trainers.py --learning).

    python benchmarks/trl_learning.py JOB.json

The environment needs TRL and the packages of scalerl. JOB.json has: model (directory), prompts (JSONL with prompt and
answer), settings (of GRPOConfig), every (updates between evaluations) and until (pass rate that ends the run). The last
printed line is JSON: step, pass_rate, and the seconds and CPU seconds of training at each evaluation, those of the
evaluations themselves not counted.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import learning
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Progress(TrainerCallback):
    """Evaluates before the first update and after every `every` of them; ends the run at a level."""

    def __init__(self, evaluate, every, until):
        self.evaluate, self.every, self.until = evaluate, every, until
        self.rows, self.not_counted, self.began = [], (0.0, 0.0), (0.0, 0.0)

    def on_train_begin(self, args, state, control, model=None, **rest):
        """Note the time, and evaluate."""
        self.began = times()
        self.note(0, model)

    def on_step_end(self, args, state, control, model=None, **rest):
        """Evaluate after every `every` updates."""
        if state.global_step % self.every == 0:
            self.note(state.global_step, model)
            if learning.reached(self.rows, self.until) is not None:  # else the trainer's own decision stands
                control.should_training_stop = True
        return control

    def note(self, step, model):
        """Add a row; its own time is not counted."""
        before = times()
        spent = [now - start - other for now, start, other in zip(before, self.began, self.not_counted, strict=True)]
        row = {"step": step, "pass_rate": self.evaluate(model), "seconds": spent[0], "cpu_s": spent[1]}
        self.rows.append(row)
        took = [now - start for now, start in zip(times(), before, strict=True)]
        self.not_counted = tuple(total + one for total, one in zip(self.not_counted, took, strict=True))


def times():
    """Return the seconds by the clock, and the CPU seconds of this process and its children."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return time.perf_counter(), own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def main():
    job = json.loads(Path(sys.argv[1]).read_text())
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    end = tokenizer.eos_token_id

    def reward(completion_ids, answer, **columns):
        texts = [tokenizer.decode([i for i in ids if i != end], skip_special_tokens=False) for ids in completion_ids]
        ended = [end in ids for ids in completion_ids]
        return [learning.reward(text, right) * done for text, right, done in zip(texts, answer, ended, strict=True)]

    with tempfile.TemporaryDirectory() as scratch:
        evaluator = learning.Evaluation(Path(job["model"]), Path(scratch))
        progress = Progress(evaluator.pass_rate, job["every"], job["until"])
        config = GRPOConfig(
            output_dir=scratch, use_cpu=not torch.cuda.is_available(), bf16=False, report_to=[], disable_tqdm=True,
            logging_steps=100000, save_strategy="no", gradient_checkpointing=False, **job["settings"],
        )  # fmt: skip
        rows = [json.loads(line) for line in Path(job["prompts"]).read_text().splitlines()]
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(job["model"]), processing_class=tokenizer, args=config,
            reward_funcs=reward, train_dataset=Dataset.from_list(rows), callbacks=[progress],
        )  # fmt: skip
        trainer.train()
    print(json.dumps(progress.rows))


if __name__ == "__main__":
    main()
