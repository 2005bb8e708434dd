"""`ForecastCallback` in TRL's AsyncGRPOTrainer, which has no evaluations; rollouts come from a worker without vLLM."""

import itertools
import queue
import threading
import types

import numpy as np
import pytest

pytest.importorskip("trl")
from tiny_grpo import digits, grpo, prompts

from scalerl.reading.curves import Curve
from scalerl.reading.logs.callback import ForecastCallback

# transformers and trl warn about their own deprecations, and that the trainer is experimental
pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 40


class Worker:
    """Puts groups of four rollouts into the trainer's queue; their rewards rise with the version of the weights."""

    def __init__(self):
        self.rollout_buffer, self.metrics_queue = queue.Queue(8), queue.Queue()
        self.version, self.running = 0, True

    def start(self):
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        for group in itertools.count():
            for sample in range(4):
                reward = 0.2 + 0.6 * self.version / (self.version + 8) + 0.02 * (sample - 1.5)
                mask = np.array([0, 0, 1, 1, 1, 1])
                while self.running:
                    try:
                        self.rollout_buffer.put(RolloutSample(
                            prompt=[], completion=[], input_ids=np.arange(3, 9), completion_mask=mask,
                            old_log_probs=-3.0 * mask.astype(np.float32), advantage=0.1 * (sample - 1.5),
                            model_version=self.version, group_id=group, metrics={"reward": reward, "reward_std": 0.1},
                        ), timeout=0.1)  # fmt: skip
                        break
                    except queue.Full:
                        continue
            if not self.running:
                return

    def stop(self):
        self.running = False

    def update_model_version(self, version):
        self.version = version

    def check_health(self, stale_after_s):
        pass


class NoTransfer:
    """Sends no weights."""

    def send_weights(self, iterator):
        list(iterator)

    def __getattr__(self, name):
        return lambda: None


@pytest.fixture
def async_grpo(tmp_path, monkeypatch):
    """A function that trains a tiny model with a callback; the kernels for GPUs are replaced."""
    pytest.importorskip("trl.experimental.async_grpo", reason="trl before 1.0")
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing

    def attention(query, key, value, *rest, **options):
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)

    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *rest: 1e12)
    monkeypatch.setattr(packing, "_flash_attn", lambda: types.SimpleNamespace(flash_attn_varlen_func=attention))
    small = grpo(tmp_path / "small", 1)
    small.model.save_pretrained(tmp_path / "model")
    small.processing_class.save_pretrained(tmp_path / "model")

    def train(callback):
        settings = {
            "max_steps": STEPS, "per_device_train_batch_size": 4, "logging_steps": 1, "token_budget": 256,
            "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "save_strategy": "no",
        }  # fmt: skip
        worker = Worker()
        trainer = AsyncGRPOTrainer(
            model=str(tmp_path / "model"), reward_funcs=[digits],
            args=AsyncGRPOConfig(str(tmp_path / "run"), **settings), train_dataset=prompts(256),
            processing_class=small.processing_class, callbacks=[callback], rollout_worker=worker,
            weight_transfer=NoTransfer(),
        )  # fmt: skip
        try:
            trainer.train()
        finally:
            worker.stop()
        return trainer

    return train


def test_the_reward_of_training_is_the_curve_and_a_condition_ends_the_run(tmp_path, async_grpo):
    told = []
    callback = ForecastCallback(tmp_path / "points.jsonl", say=told.append)
    trainer = async_grpo(callback.stop_when("gain at 2x below 0.9 with probability 0.5"))
    assert 0 < trainer.state.global_step < STEPS
    assert any("the training reward, because there are no evaluations" in line for line in told)
    assert any("stopping, because 'gain at 2x" in line for line in told)
    curve = Curve.read(tmp_path / "points.jsonl")
    assert curve.training and len(curve) >= 10 and curve.axis == "device_hours"
