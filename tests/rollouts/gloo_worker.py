"""Loaded by a real server's workers (`--worker-extension-cls gloo_worker.WorkerExtension`): they receive over gloo."""

from typing import Any

import gloo_vllm
import scalerl_weights
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine as Engine

START, FINISH = Engine.start_weight_update, Engine.finish_weight_update


class WorkerExtension:
    """Adds nothing to vLLM's worker; naming it makes every worker process load this file."""


def start(self: Any) -> None:
    START(self)
    scalerl_weights.before_update_on_cpu(self.model, self.device)


def finish(self: Any) -> None:
    FINISH(self)
    scalerl_weights.after_update_on_cpu(self.model, self.model_config, self.device)


gloo_vllm.replace()
# what vLLM forgets after an update on CPU only, in every backend
Engine.start_weight_update, Engine.finish_weight_update = start, finish
