"""Replacement of hub branches and tags by commits, so that a run's saved configuration repeats it exactly."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from scalerl.config import HuggingFaceModel, RunConfig
from scalerl.config.base import replace
from scalerl.config.data import AnyTask, PromptFile
from scalerl.core.errors import outcome
from scalerl.models.gguf import is_gguf
from scalerl.prompts.files import on_hub

TIMEOUT_S = 10.0
"""Time limit of a request to the hub, seconds."""

_COMMIT = re.compile(r"[0-9a-f]{40}")


def pinned(config: RunConfig, note: Callable[[str], None]) -> RunConfig:
    """Return the configuration with the commit of every hub model and hub data set as its `revision`.

    If the hub does not answer, the revision is kept, because the model may be in the cache of this machine.

    Args:
        config: Configuration of a new run.
        note: Function that gets a line for the user about a revision that could not be resolved.
    """
    model = config.model
    if isinstance(model, HuggingFaceModel) and not Path(model.path).exists() and not is_gguf(model.path):
        model = replace(model, revision=_commit(model.path, model.revision, "model", note))
    return replace(config, model=model, data=tuple(_task(task, note) for task in config.data))


def _task(task: AnyTask, note: Callable[[str], None]) -> AnyTask:
    if not isinstance(task, PromptFile) or not on_hub(task):
        return task
    return replace(task, revision=_commit(task.path, task.revision, "dataset", note))


def _commit(repository: str, revision: str, kind: str, note: Callable[[str], None]) -> str:
    """Return the current commit of a branch or tag, or the revision itself if the hub does not give it."""
    if _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    # the types of errors depend on the HTTP library of the installed huggingface_hub
    asked = outcome(lambda: HfApi().repo_info(repository, revision=revision, repo_type=kind, timeout=TIMEOUT_S).sha)
    if error := asked.exception():
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        note(f"{repository}: the commit of revision {revision!r} could not be looked up and is not recorded ({reason})")
        return revision
    return asked.result() or revision
