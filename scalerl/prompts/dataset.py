"""Loading of prompts from files, hub data sets, environments and generated tasks, tokenized and split.

A prompt's id is a hash of its content. The split into training and held-out prompts therefore does not depend on the
order of the rows, and is the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.config import RunConfig
from scalerl.config.data import GeneratedTask, PromptFile, RepliedTask, TaskData, TextTask, is_suite, shares
from scalerl.config.run import Scoring
from scalerl.core.errors import ConfigError
from scalerl.models.template import check_template, check_tools, render
from scalerl.models.text import prompt_tokens
from scalerl.prompts.layouts import Row, identity, read_rows
from scalerl.prompts.sources import custom_rows, environment_rows, gym_rows
from scalerl.tasks.checks import check_tests
from scalerl.tasks.generated import GENERATED
from scalerl.tasks.pool import Step, Trial, in_this_process
from scalerl.tasks.turns import opening
from scalerl.types import Prompt


@dataclass(frozen=True, slots=True)
class PromptSplit:
    """Training and held-out prompts.

    Example: PromptSplit(training=(Prompt(...), ...), held_out=(Prompt(...), ...), notes=("dropped 2 duplicates",))
    """

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()
    """Notes for the user about rows that were left out."""

    @property
    def everything(self) -> tuple[Prompt, ...]:
        """All prompts."""
        return (*self.training, *self.held_out)


def load_prompts(config: RunConfig, tokenizer: Any) -> PromptSplit:
    """Read, tokenize and split the prompts of a run.

    Args:
        config: Configuration of the run.
        tokenizer: A transformers tokenizer.

    Raises:
        ConfigError: A file is missing, empty or not valid JSON, a row has no prompt or answer, a prompt exceeds the
            limit, or the held-out split leaves too few training prompts. The message has file and line.
    """
    training, held_out, notes = list[Prompt](), list[Prompt](), list[str]()
    for task in config.data:
        share, kept = shares(config.data)[task.curve], config.held_out(task)
        needed = math.ceil(share * config.recipe.prompts_per_step)
        # a task with share 0 is never trained, so all its prompts are held out
        pool, new_notes = task_prompts(task, tokenizer, kept, config.scoring)
        notes += new_notes
        kept = config.held_out(task, len(pool))
        if config.evaluation.prompts == "auto" and task.held_out is None:
            notes.append(f"held out {kept} of {len(pool)} prompts; --evaluation.prompts N sets another number")
        parts = ([], pool) if is_suite(task) else _split(pool, kept, needed, task.curve if len(config.data) > 1 else "")
        training, held_out = training + parts[0], held_out + parts[1]
    if len(config.data) > 1:
        held_out.sort(key=lambda p: p.id)  # mixes the tasks evenly over engines that share an evaluation
        known = {prompt.id for prompt in held_out} | {prompt.text for prompt in held_out}
        clean = [prompt for prompt in training if prompt.id not in known and prompt.text not in known]
        if len(clean) < len(training):
            notes.append(f"left out {len(training) - len(clean)} training prompts that another task holds out")
        training = clean
    return PromptSplit(tuple(training), tuple(held_out), tuple(notes))


def task_prompts(task: TaskData, tokenizer: Any, held_out: int, scoring: Scoring) -> tuple[list[Prompt], list[str]]:
    """Return all prompts of one task, tokenized, and notes on rows that were left out.

    Args:
        task: A task of a run.
        tokenizer: A transformers tokenizer.
        held_out: Number of prompts that a task with generated prompts adds to its training pool.
        scoring: Settings of the processes in which user code starts.
    """
    if isinstance(task, GeneratedTask):
        made = GENERATED[task.kind].rows(task, task.prompts + held_out)
        rows = [Row(r["prompt"], r["answer"], {}, "") for r in made]
        return _tokenize(rows, task.curve, lambda row: _encode_plain(tokenizer, str(row.prompt))), []
    assert isinstance(task, TextTask), task
    if tokenizer.chat_template and task.chat_template != "never":
        check_template(tokenizer)
    if isinstance(task, RepliedTask):
        with Trial(scoring, task.start_s) as trial:
            rows, notes = SOURCES[task.kind](task, held_out, trial.step)
    else:
        rows, notes = SOURCES[task.kind](task, held_out, in_this_process)
    if tools := rows[0].columns.get("tools") if isinstance(task, RepliedTask) else None:
        check_tools(tokenizer, tools, task.chat_template != "never")
    prompts = _tokenize(rows, task.curve, lambda row: _encode_prompt(tokenizer, row.prompt, task, tools))
    kept = _within_limit(prompts, task)
    if len(kept) < len(prompts):
        notes = [*notes, f"left out {len(prompts) - len(kept)} prompts over {task.max_prompt_tokens} tokens"]
    if isinstance(task, PromptFile) and task.verifier == "code" and not task.reward:
        check_tests(kept)
    return kept, notes


def _file_rows(data: PromptFile, held_out: int, step: Step) -> tuple[list[Row], list[str]]:
    unique, count = dict[str, Row](), 0
    for row in read_rows(data):
        count += 1
        unique[identity(row)] = row
    notes = [f"dropped {count - len(unique)} duplicate rows of {data.path}"] if len(unique) < count else []
    return list(unique.values()), notes


SOURCES: dict[str, Callable[[Any, int, Step], tuple[list[Row], list[str]]]] = {
    "file": _file_rows,
    "custom": custom_rows,
    "reasoning-gym": gym_rows,
    "verifiers": environment_rows,
}
"""Functions by `data.kind`: (task, number of held-out prompts, way to call user code) -> rows and notes."""


def _split(prompts: list[Prompt], held_out: int, needed: int, name: str) -> tuple[list[Prompt], list[Prompt]]:
    """Split one task's prompts, in the order of ids, into training and held-out ones; a step needs `needed` of them."""
    ordered = sorted(prompts, key=lambda p: p.id)
    training = ordered[held_out:]
    if len(training) < needed:
        of_task, most = f"{name}: " if name else "", len(ordered) - needed
        fewer = f"at most {most}, so that one step's {needed} prompts remain, or auto"
        allowed = fewer if most > 0 else f"more than {needed} prompts, or fewer recipe.prompts_per_step"
        raise ConfigError(
            f"{of_task}evaluation.prompts: got {held_out} of {len(ordered)} prompts, which leaves {len(training)} for "
            f"training; allowed: {allowed}"
        )
    return training, ordered[:held_out]


def _tokenize(rows: Sequence[Row], task: str, encode: Callable[[Row], tuple[str, list[int]]]) -> list[Prompt]:
    prompts = []
    for row in rows:
        name = identity(row)
        text, tokens = encode(row)
        if not tokens:
            raise ConfigError(
                f"{row.where}: the model's tokenizer returns no tokens for the prompt {text!r}; change or drop the row"
            )
        columns = {**row.columns, "prompt": row.prompt} if row.columns else {}
        prompts.append(Prompt(name, text, tuple(tokens), row.answer, task, columns, row.where))
    return prompts


def _encode_plain(tokenizer: Any, text: str) -> tuple[str, list[int]]:
    return text, prompt_tokens(tokenizer, text)


def _encode_prompt(
    tokenizer: Any, prompt: str | list[dict[str, str]], data: TextTask, tools: Sequence[Any] | None = None
) -> tuple[str, list[int]]:
    """Return a prompt's text and tokens as the policy gets them.

    Args:
        tokenizer: A transformers tokenizer.
        prompt: Text or chat messages.
        data: Task with system prompt and use of the chat template.
        tools: Schemas of tools, for the template.

    Raises:
        ConfigError: The tokenizer has no chat template although one is required, or the template fails.
    """
    if data.chat_template == "always" and not tokenizer.chat_template:
        raise ConfigError(
            "data.chat_template: got 'always', and the model's tokenizer has no chat template; allowed: 'auto' or "
            "'never' for plain text, or a tokenizer saved with a chat_template"
        )
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if tokenizer.chat_template and data.chat_template != "never":
        text = render(tokenizer, system + opening(prompt), tools=tools)
        return text, list(tokenizer(text, add_special_tokens=False)["input_ids"])
    spoken = prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
    return _encode_plain(tokenizer, f"{data.system_prompt}\n\n{spoken}" if data.system_prompt else spoken)


def _within_limit(prompts: Sequence[Prompt], task: TextTask) -> list[Prompt]:
    limit = task.max_prompt_tokens
    kept = [prompt for prompt in prompts if len(prompt.tokens) <= limit]
    if len(kept) < len(prompts) and (task.long_prompts == "error" or not kept):
        long = [f"{one.where} ({len(one.tokens)} tokens)" for one in prompts if len(one.tokens) > limit]
        raise ConfigError(
            f"{len(long)} of {len(prompts)} rows are over {limit} tokens: {', '.join(long[:5])}; raise "
            "data.max_prompt_tokens, or leave them out with --data.long_prompts drop"
        )
    return kept
