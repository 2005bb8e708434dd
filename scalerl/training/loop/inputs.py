"""What a run reads again when it resumes, as digests in every checkpoint; a resume compares them with what it finds.

rows, their prompts     every run; other rows or tokens are an error
tokenizer, config.json, end tokens     every run; a change is an error
weights of the start    with adapters (their base) and with a KL term (its reference); a change is an error
code                    functions, environments, agents and programs of the configuration; a change is a note

Weights that the run trains, the optimizer and the sequences in flight are in the checkpoint itself. A judge is an
address, and the revision of a hub name is pinned in config.toml.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from scalerl.core.errors import ConfigError, short
from scalerl.core.exact import exact_bytes
from scalerl.core.manifest import digest
from scalerl.core.serialization import leaves
from scalerl.core.types import TURNS, Prompt
from scalerl.training.config.trust import Code
from scalerl.training.models.build import PolicySpec
from scalerl.training.models.files import weight_files
from scalerl.training.models.policy import Policy, stop_tokens
from scalerl.training.prompts.dataset import PromptSplit

Digests = npt.NDArray[np.uint64]

NOTED = ("transformers_version", "torch_dtype", "dtype")
"""Fields of a model's config.json without effect here; `hardware.dtype` is the type of the weights."""

FILES_AT_ONCE = 4
"""Files of weights that are read together."""


def prompt_inputs(prompts: PromptSplit) -> dict[str, dict[str, Digests]]:
    """Return 64-bit digests of the row and of the tokens of every prompt, by task, in the order of reading.

    A million rows take about 3 s, and 16 MB of a checkpoint.
    """
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts.all_prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    return {
        task: {
            "rows": _digests(map(_row_bytes, of_task)),
            "tokens": _digests(array("q", prompt.tokens).tobytes() for prompt in of_task),
        }
        for task, of_task in tasks.items()
    }


def _row_bytes(prompt: Prompt) -> bytes:
    try:
        return exact_bytes((prompt.id, sorted(prompt.columns.items(), key=itemgetter(0))))
    except RecursionError:
        raise ConfigError(
            f"{prompt.where}: the row is nested too deeply, or contains itself; allowed: plain values"
        ) from None


def _digests(parts: Iterable[bytes]) -> Digests:
    return np.fromiter(map(xxhash.xxh3_64_intdigest, parts), np.uint64)


def check_prompts(
    before: Mapping[str, Mapping[str, Digests]],
    now: Mapping[str, Mapping[str, Digests]],
    prompts: PromptSplit,
    run: Path,
) -> None:
    """Refuse to resume with other rows, or with other tokens of the same rows. Their order does not matter.

    Args:
        before: `prompt_inputs` in the checkpoint.
        now: `prompt_inputs` of these prompts.
        prompts: The prompts as they are now.
        run: The run directory.

    Raises:
        ConfigError: The message has file and line of the first row that differs.
    """
    for task, current in now.items():
        of_task, expected = [prompt for prompt in prompts.all_prompts if prompt.task == task], before[task]
        new, missing = ~np.isin(current["rows"], expected["rows"]), ~np.isin(expected["rows"], current["rows"])
        if new.any() or missing.any():
            raise ConfigError(f"{_changed_rows(of_task, new, missing)}. {_advice('the data', run)}")
        tokens = expected["tokens"][np.argsort(expected["rows"])][np.argsort(np.argsort(current["rows"]))]
        if (other := current["tokens"] != tokens).any():
            first = of_task[int(other.argmax())]
            raise ConfigError(
                f"{first.where}: the prompt has other tokens than before, as have {other.sum() - 1} other prompts, "
                f"and the rows have not changed. So the model's tokenizer or its chat template has; the prompt is now "
                f"{short(first.text, 300)}. {_advice('the tokenizer', run)}"
            )


def _changed_rows(prompts: Sequence[Prompt], new: npt.NDArray[np.bool_], missing: npt.NDArray[np.bool_]) -> str:
    """Describe how rows differ from those with which a run began: the first one, and how many there are."""
    changed = f"{new.sum()} of {len(new)} rows are new or changed"
    counts = f"{changed}, and {missing.sum()} of the {len(missing)} before are missing"
    if new.any():
        return f"{prompts[int(new.argmax())].where}: this row is not one of those with which the run began ({counts})"
    source = prompts[0].where.rpartition(" ")[0]
    return f"{source}: row {int(missing.argmax()) + 1} of those with which the run began is missing ({counts})"


def model_inputs(
    spec: PolicySpec, policy: Policy, tokenizer: Any, prompts: PromptSplit, *, reference: bool
) -> dict[str, Any]:
    """Return what a run takes from the directory of its model, besides the weights that it trains.

    Files of frozen weights are digested as a whole: 0.12 s per GB that is in the page cache, from which the model has
    just been loaded.

    Args:
        spec: The policy before it was loaded.
        policy: The loaded model.
        tokenizer: The model's tokenizer.
        prompts: The prompts of the run.
        reference: Whether the loss has a KL term, whose reference is the model before training.
    """
    from transformers import PretrainedConfig

    settings, _ = PretrainedConfig.get_config_dict(spec.path, revision=spec.revision, trust_remote_code=False)
    return {
        "config.json": {k: v for k, v in settings.items() if k not in NOTED and not k.startswith("_")},
        "end tokens": [tokenizer.convert_ids_to_tokens(token) for token in stop_tokens(policy, tokenizer)],
        "tokenizer": tokenizer_inputs(tokenizer, any(TURNS in prompt.columns for prompt in prompts.all_prompts)),
        "weights": _weight_digests(spec) if spec.lora or reference else {},
    }


def tokenizer_inputs(tokenizer: Any, replies: bool) -> dict[str, str]:
    """Return digests of a tokenizer's vocabulary, of its texts of tokens, and of its chat template.

    Args:
        tokenizer: A transformers tokenizer.
        replies: Whether environments reply; otherwise the template matters only for the prompts.
    """
    ids: dict[str, int] = tokenizer.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    numbers = [ids[token] for token in tokens]
    texts = (tokenizer.decode(numbers, skip_special_tokens=skip) for skip in (False, True))
    return {
        "the vocabulary": _text_digest("\0".join([*tokens, *map(str, numbers), *map(str, tokenizer.all_special_ids)])),
        "the text of its tokens": _text_digest("\0".join(texts)),
        "the chat template": _text_digest(str(tokenizer.chat_template)) if replies else "",
    }


def _text_digest(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))


def _weight_digests(spec: PolicySpec) -> dict[str, str]:
    """Return the digests of a model's files of weights by name."""
    directory = Path(spec.path)
    if not directory.is_dir():
        from transformers.utils import cached_file

        directory = Path(cached_file(spec.path, "config.json", revision=spec.revision)).parent
    files = weight_files(directory)
    with ThreadPoolExecutor(FILES_AT_ONCE) as threads:
        return dict(zip([file.name for file in files], threads.map(digest, files), strict=True))


def check_model(before: Mapping[str, Any], now: Mapping[str, Any], path: str, run: Path) -> None:
    """Refuse to resume with another model: end tokens, config.json, tokenizer, or frozen weights.

    Args:
        before: `model_inputs` in the checkpoint.
        now: The same as they are now.
        path: The model.
        run: The run directory.

    Raises:
        ConfigError: The message has what changed.
    """
    for part, expected in before.items():
        if now[part] == expected:
            continue
        if part == "end tokens":
            what = (
                f"the tokens that end a completion were {expected} and are {now[part]} (eos_token_id in "
                "generation_config.json or config.json, eos_token in tokenizer_config.json)"
            )
        else:
            old, new = dict(leaves(expected)), dict(leaves(now[part]))
            names = [name for name in {**old, **new} if old.get(name, leaves) != new.get(name, leaves)]
            shown = [f"{name} was {short(old.get(name))} and is {short(new.get(name))}" for name in names[:3]]
            what = {
                "config.json": f"config.json has changed: {'; '.join(shown)}",
                "tokenizer": f"the tokenizer has changed: {', '.join(names)}",
                "weights": "the weights of the model have changed, on which the run's adapters or the reference of its "
                f"KL term rest: {', '.join(names[:3])}",
            }[part]
        raise ConfigError(f"model.path: {path}: {what}. {_advice('the model', run)}")


def code_inputs(codes: Iterable[Code]) -> dict[str, str]:
    """Return digests of the code that a run uses, by field and name; "" if it has no file."""
    return {f"{code.field} = {code.name}": code.digest for code in codes}


def code_notes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a note on each piece of code that has changed since a checkpoint; a resume goes on with the new one."""
    changed = [name for name, content in now.items() if before.get(name, content) != content]
    return [f"{name} has changed since the checkpoint; the run goes on with the code of today" for name in changed]


def _advice(what: str, run: Path) -> str:
    exported = (run / "model" / "config.json").exists()
    more = f"; add --model {run}/model to begin with the weights that it exported" if exported else ""
    return (
        f"Nothing was changed. Restore {what} to resume, or start a new run: scalerl train {run}/config.toml --run-dir "
        f"ANOTHER{more}"
    )
