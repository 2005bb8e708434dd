"""Loading of prompts from files, hub data sets, environments and generated tasks, tokenized and split.

A prompt's id is a hash of prompt and answer. The split into training and held-out prompts therefore does not depend on
the order of the rows, and is the same in every run. Rows that ask the same, whatever their answers, are on one side.
"""

from __future__ import annotations

import gc
import hashlib
import pickle
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from scalerl.core.errors import ConfigError, outcome
from scalerl.core.exact import is_plain
from scalerl.core.files import parse_json
from scalerl.core.types import AGENT, TURNS, Prompt
from scalerl.training.config.data import (
    AgentTask,
    GeneratedTask,
    PromptFile,
    RepliedTask,
    TaskData,
    TextTask,
    is_suite,
    prompts_of_step,
)
from scalerl.training.config.recipe import Recipe
from scalerl.training.config.run import Evaluation, Scoring
from scalerl.training.models.template import check_tools, render, template_notes
from scalerl.training.models.text import encoded, tokens_of_prompts
from scalerl.training.prompts.cache import PromptCache
from scalerl.training.prompts.layouts import PromptRow, prompt_rows
from scalerl.training.prompts.sources import agent_rows, custom_rows, environment_rows, gym_rows
from scalerl.training.rewards.calls import FORM
from scalerl.training.rewards.checks import check_tests
from scalerl.training.rewards.generated import GENERATED
from scalerl.training.rewards.pool import Step, Trial, in_this_process
from scalerl.training.rewards.tools import LOOK_UP, template_form
from scalerl.training.rewards.turns import opening

Encode = Callable[[Sequence[str]], Iterator[list[int]]]
"""Turns texts into tokens, in batches."""

QUESTION_CHARACTERS = 300
"""Characters of a question that are kept for lists of rollouts."""


@dataclass(frozen=True, slots=True)
class PromptSplit:
    """Training and held-out prompts.

    Example: PromptSplit(training=(Prompt(...), ...), held_out=(Prompt(...), ...), all_prompts=(Prompt(...), ...),
                         notes=("dropped 2 duplicates",))
    """

    training: tuple[Prompt, ...]
    held_out: tuple[Prompt, ...]
    all_prompts: tuple[Prompt, ...]
    """All prompts in the order in which they were read, with those that training leaves out."""
    notes: tuple[str, ...] = ()
    """Notes for the user about rows that were left out."""


class PromptSettings(Protocol):
    """What prompts depend on: parts of the configuration of a run."""

    @property
    def data(self) -> Sequence[TaskData]:
        """Tasks."""

    @property
    def evaluation(self) -> Evaluation:
        """Settings that say how many prompts are held out."""

    @property
    def scoring(self) -> Scoring:
        """Settings of the verifiers."""

    @property
    def recipe(self) -> Recipe:
        """The recipe, with the prompts of a step."""


def load_prompts(settings: PromptSettings, tokenizer: Any, stop: Sequence[int] = ()) -> PromptSplit:
    """Read, tokenize and split the prompts of a run.

    Args:
        settings: The configuration of the run.
        tokenizer: A transformers tokenizer.
        stop: Ids of the tokens that end a completion, for the check of the chat template.

    Raises:
        ConfigError: A file is missing, empty or not valid JSON, a row has no prompt or answer, a prompt exceeds the
            limit, or the held-out split leaves too few training prompts. The message has file and line.
    """
    with _without_collector():
        return _load(settings, tokenizer, stop)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the search for cycles, which would go through millions of live prompts again and again."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def _load(settings: PromptSettings, tokenizer: Any, stop: Sequence[int]) -> PromptSplit:
    tasks, evaluation, scoring = settings.data, settings.evaluation, settings.scoring
    training, held_out, all_prompts = list[Prompt](), list[Prompt](), list[Prompt]()
    notes, needed = list[str](), prompts_of_step(tasks, settings.recipe.prompts_per_step)
    for task in tasks:
        of_task = f"{task.curve}: " if len(tasks) > 1 else ""
        # a task with share 0 is never trained, so all its prompts are held out
        pool, new_notes = task_prompts(task, tokenizer, evaluation.held_out_of(task), scoring, stop)
        notes += [note for note in new_notes if note not in notes]
        all_prompts += pool
        if is_suite(task):
            held_out += pool
            continue
        if repeats := len(pool) - len({prompt.content for prompt in pool}):
            notes.append(
                f"{of_task}{repeats} of {len(pool)} prompts repeat another one with another answer or notation; those "
                "with the same text are all held out or all trained on"
            )
        target = evaluation.held_out_of(task, len(pool))
        parts = _split(pool, target, needed[task.curve], of_task)
        if evaluation.prompts == "auto" and task.held_out == "auto":
            notes.append(f"held out {len(parts[1])} of {len(pool)} prompts; --evaluation.prompts N sets another number")
        elif len(parts[1]) != target:
            notes.append(f"{of_task}held out {len(parts[1])} prompts, not {target}, because equal texts stay together")
        training, held_out = training + parts[0], held_out + parts[1]
    if len(tasks) > 1:
        held_out.sort(key=lambda p: p.id)  # mixes the tasks evenly over engines that share an evaluation
        held_out_contents = {prompt.content for prompt in held_out}
        clean = [prompt for prompt in training if prompt.content not in held_out_contents]
        if len(clean) < len(training):
            notes.append(f"left out {len(training) - len(clean)} training prompts that another task holds out")
            _check_left(clean, training, needed)
        training = clean
    return PromptSplit(tuple(training), tuple(held_out), tuple(all_prompts), tuple(notes))


def _check_left(clean: Sequence[Prompt], training: Sequence[Prompt], needed: Mapping[str, int]) -> None:
    """Refuse tasks whose training prompts are almost all held out by others."""
    after, before = (Counter(prompt.task for prompt in prompts) for prompts in (clean, training))
    for task, count in needed.items():
        if after[task] < count:
            raise ConfigError(
                f"{task}: {before[task] - after[task]} of {before[task]} training prompts have the text of a prompt "
                f"that a task or suite holds out, which leaves {after[task]} for training; allowed: at least one "
                f"step's {count}. Remove the held-out set, or train on other prompts"
            )


def task_prompts(
    task: TaskData, tokenizer: Any, held_out: int, scoring: Scoring, stop: Sequence[int] = ()
) -> tuple[list[Prompt], list[str]]:
    """Return all prompts of one task, tokenized, and notes on rows that were left out.

    Args:
        task: A task of a run.
        tokenizer: A transformers tokenizer.
        held_out: Number of prompts that a task with generated prompts adds to its training pool.
        scoring: Settings of the processes in which user code starts.
        stop: Ids of the tokens that end a completion; empty: not known.
    """
    if isinstance(task, GeneratedTask):
        plain_rows = GENERATED[task.kind].rows(task, task.prompts + held_out)
        rows = [PromptRow(r["prompt"], r["answer"], {}, "") for r in plain_rows]
        return _tokenize(rows, task.curve, [str(row.prompt) for row in rows], partial(tokens_of_prompts, tokenizer)), []
    assert isinstance(task, TextTask), task
    about: list[str] = []
    if tokenizer.chat_template and task.chat_template != "never":
        about = template_notes(tokenizer, task.template_arguments, task.system_prompt, task.template_date, stop)
    cache = PromptCache(task, tokenizer) if isinstance(task, PromptFile) else None
    result = cache.read() if cache is not None else None
    if result is None:
        result = _read(task, tokenizer, held_out, scoring)
        if cache is not None:
            cache.write(*result)
    prompts, notes = result
    if isinstance(task, PromptFile) and task.verifier == "code" and not task.reward:
        check_tests(prompts)
    return prompts, [*about, *notes]


def _read(task: TextTask, tokenizer: Any, held_out: int, scoring: Scoring) -> tuple[list[Prompt], list[str]]:
    """Read, render and tokenize the prompts of one task, and return them with notes on its rows."""
    if isinstance(task, RepliedTask):
        with Trial(scoring, task.start_s) as trial:
            rows, notes = SOURCES[task.kind](task, held_out, trial.step)
    else:
        rows, notes = SOURCES[task.kind](task, held_out, in_this_process)
    rows, left_out = _sendable(rows, isinstance(task, PromptFile))
    notes = [*notes, *left_out, *_message_notes(rows, tokenizer, task)]
    if tools := rows[0].columns.get("tools") if isinstance(task, RepliedTask) else None:
        check_tools(tokenizer, tools, task.chat_template != "never")
        form, about = template_form(tokenizer, tools)
        notes += filter(None, [about])
        for row in rows:
            row.columns[FORM] = form
    chat = _uses_template(tokenizer, task)
    if isinstance(task, AgentTask) and chat:
        form, about = template_form(tokenizer, [LOOK_UP])
        notes = [*notes, *([f"{about}; this matters if the program uses tools"] if about else [])]
        for row in rows:
            row.columns[AGENT][FORM] = form
    of_rows = isinstance(task, PromptFile) and not tools
    texts = [
        _chat_text(tokenizer, row.prompt, task, tools_of(row) if of_rows else tools) if chat else _plain_text(row, task)
        for row in rows
    ]
    encode = partial(encoded if chat else tokens_of_prompts, tokenizer)
    prompts = _tokenize(rows, task.curve, texts, partial(_until, task.max_prompt_tokens, encode))
    short_prompts = _within_limit(prompts, task)
    if len(short_prompts) < len(prompts):
        notes = [*notes, f"left out {len(prompts) - len(short_prompts)} prompts over {task.max_prompt_tokens} tokens"]
    return short_prompts, notes


def _sendable(rows: list[PromptRow], of_file: bool) -> tuple[list[PromptRow], list[str]]:
    """Leave out columns that cannot be sent to other processes, such as the videos of a data set on the hub.

    Args:
        rows: Rows of a task.
        of_file: Whether they are those of a file or data set; the columns of other tasks are all needed.
    """
    bad: dict[str, str] = {}
    for row in rows:
        if is_plain(row.columns):
            continue
        for name, value in row.columns.items():
            if name not in bad and not is_plain(value) and (error := outcome(partial(pickle.dumps, value)).exception()):
                bad[name] = f"{row.source}: {name!r} cannot be sent to other processes ({error})"
    if bad and not of_file:
        raise ConfigError(f"{next(iter(bad.values()))}; allowed: values that pickle can store")
    if bad:
        rows = [replace(row, columns={k: v for k, v in row.columns.items() if k not in bad}) for row in rows]
    return rows, [f"left out the column {name!r}: {reason}" for name, reason in bad.items()]


def _file_rows(data: PromptFile, held_out: int, step: Step) -> tuple[list[PromptRow], list[str]]:
    unique, count = dict[str, PromptRow](), 0
    for row in prompt_rows(data):
        count += 1
        unique[row.id] = row
    notes = [f"dropped {count - len(unique)} duplicate rows of {data.path}"] if len(unique) < count else []
    return list(unique.values()), notes


SOURCES: dict[str, Callable[[Any, int, Step], tuple[list[PromptRow], list[str]]]] = {
    "file": _file_rows,
    "custom": custom_rows,
    "agent": agent_rows,
    "reasoning-gym": gym_rows,
    "verifiers": environment_rows,
}
"""Functions by `data.kind`: (task, number of held-out prompts, way to call user code) -> rows and notes."""


def _split(prompts: list[Prompt], held_out: int, needed: int, of_task: str) -> tuple[list[Prompt], list[Prompt]]:
    """Split one task's prompts, in the order of ids, into training and held-out ones; a step needs `needed` of them.

    Prompts with the same content stay together. The held-out ones are the first that fit into the wanted number; if
    none fits, the smallest set with the same content.
    """
    ordered, same = sorted(prompts, key=lambda p: p.id), defaultdict[str, list[Prompt]](list)
    for prompt in ordered:
        same[prompt.content].append(prompt)
    held, free_places = set[str](), held_out
    for content, together in same.items():
        if len(together) <= free_places:
            held.add(content)
            free_places -= len(together)
    if held_out and not held and same:
        held.add(min(same, key=lambda content: len(same[content])))
    training = [prompt for prompt in ordered if prompt.content not in held]
    check_enough(of_task, len(ordered), held_out, len(training), needed, len(same))
    return training, [prompt for prompt in ordered if prompt.content in held]


def check_enough(of_task: str, prompts: int, held_out: int, left: int, needed: int, texts: int | None = None) -> None:
    """Refuse a task of which too few prompts are left for a step.

    Args:
        of_task: The name of the task with a colon, or "" for the only one.
        prompts: All its prompts.
        held_out: The wanted number of held-out prompts.
        left: Those that are left for training.
        needed: Prompts of the task in a step.
        texts: Different texts among the prompts; None if they are not known.

    Raises:
        ConfigError: Fewer than `needed` are left.
    """
    if left >= needed:
        return
    most, why = prompts - needed, ""
    fewer = f"at most {most}, so that one step's {needed} prompts remain, or auto"
    allowed = fewer if most > 0 else f"more than {needed} prompts, or fewer recipe.prompts_per_step"
    if texts is not None and texts < prompts:
        why = f", because the prompts have {texts} different texts, and equal ones stay together"
        allowed = f"fewer, so that one step's {needed} prompts remain, or prompts with more different texts"
    raise ConfigError(
        f"{of_task}evaluation.prompts: got {held_out} of {prompts} prompts, which leaves {max(0, left)} for "
        f"training{why}; allowed: {allowed}"
    )


def _tokenize(rows: Sequence[PromptRow], task: str, texts: Sequence[str], encode: Encode) -> list[Prompt]:
    """Return the prompts of rows, whose texts `encode` turns into tokens in batches."""
    prompts, systems = [], Counter(_system(row.prompt) for row in rows)
    shared: dict[int, int] = {}  # one object for each token of the vocabulary, not one for each token of a prompt
    for row, text, tokens in zip(rows, texts, encode(texts), strict=True):
        if not tokens:
            raise ConfigError(
                f"{row.source}: the model's tokenizer returns no tokens for the prompt {text!r}; change or drop the row"
            )
        columns = {**row.columns, "prompt": row.prompt} if row.columns else {}
        if AGENT in columns or ("environment" in columns and TURNS in columns):
            content = row.id  # the prompts of an environment or agent may be equal: what it asks is in the row
        else:  # a system message of several rows is an instruction; that of one row is what it asks
            content = content_of(row.prompt, systems[_system(row.prompt)] == 1)
        token_ids = tuple(map(shared.setdefault, tokens, tokens))
        prompts.append(
            Prompt(row.id, text, token_ids, row.answer, task, columns, row.source, content, question_of(row.prompt))
        )
    return prompts


LETTERS_PER_TOKEN = 32
"""Characters of a text for each token of the limit, beyond which it is cut before it is encoded: a tokenizer needs 300
bytes of memory for each character."""


def _until(limit: int, encode: Encode, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield the tokens of each text; of a text over the limit, perhaps only the first ones, which are over it too."""
    most = LETTERS_PER_TOKEN * limit
    if max(map(len, texts), default=0) <= most:
        yield from encode(texts)
        return
    for text, tokens in zip(texts, encode([text[:most] for text in texts]), strict=True):
        if len(text) > most and len(tokens) <= limit:  # its tokens are uncommonly long
            (tokens,) = encode([text])
        yield tokens


def question_of(prompt: str | Sequence[dict[str, str]]) -> str:
    """Return the beginning of what a prompt asks: of the user's last message, without the chat template around it."""
    messages = opening(prompt)
    questions = [message for message in messages if message["role"] == "user"] or messages
    return questions[-1]["content"].strip()[:QUESTION_CHARACTERS]


def _system(prompt: str | Sequence[Mapping[str, str]]) -> str:
    return "" if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt if m["role"] == "system")


_ALIKE = str.maketrans({**dict.fromkeys("‘’‚‛", "'"), **dict.fromkeys("“”„‟«»", '"'), **dict.fromkeys("‐‑‒–—−", "-")})
_SPACES = re.compile(r" (?:(?=[^\w ])|(?<=[^\w ] ))")
"""A space before or after a sign, which is often written without: "12 * 13" and "12*13"."""


def content_of(prompt: str | Sequence[Mapping[str, str]], system: bool = False) -> str:
    """Return 16 hex digits of a hash of what a prompt asks, equal for prompts that differ in notation only.

    White space, case, the forms of Unicode characters, quotation marks and dashes, and punctuation at the end do not
    count.

    Args:
        prompt: Prompt of a row, text or messages.
        system: Whether system messages count.
    """
    text = prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt if m["role"] != "system")
    text += _system(prompt) if system else ""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_ALIKE)
        text = "".join(character for character in text if unicodedata.category(character) != "Cf")  # such as U+200B
    words = _SPACES.sub("", " ".join(text.casefold().split())).rstrip(".?!:;,")
    return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()


def _uses_template(tokenizer: Any, data: TextTask) -> bool:
    """Return whether the prompts of a task are rendered with the tokenizer's chat template.

    Raises:
        ConfigError: The tokenizer has no chat template although one is required.
    """
    if data.chat_template == "always" and not tokenizer.chat_template:
        raise ConfigError(
            "data.chat_template: got 'always', and the model's tokenizer has no chat template; allowed: 'auto' or "
            "'never' for plain text, or a tokenizer saved with a chat_template"
        )
    return bool(tokenizer.chat_template) and data.chat_template != "never"


def _chat_text(
    tokenizer: Any, prompt: str | list[dict[str, str]], data: TextTask, tools: Sequence[Any] | None = None
) -> str:
    """Return a prompt's text in the tokenizer's chat template; raises as `render`."""
    messages = with_system(opening(prompt), data.system_prompt)
    return render(tokenizer, messages, tools=tools, day=data.template_date, arguments=data.template_arguments)


def _plain_text(row: PromptRow, data: TextTask) -> str:
    prompt = row.prompt
    spoken = prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)
    return f"{data.system_prompt}\n\n{spoken}" if data.system_prompt else spoken


def with_system(messages: list[dict[str, str]], system: str) -> list[dict[str, str]]:
    """Return messages with a text at the start of their system message, or in one of its own: templates know one."""
    if not system:
        return messages
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    return [{**messages[0], "content": f"{system}\n\n{messages[0]['content']}"}, *messages[1:]]


def tools_of(row: PromptRow) -> list[Any] | None:
    """Return the schemas of tools in the column `tools` of a row of a file, as TRL has them."""
    tools = row.columns.get("tools")
    if isinstance(tools, str) and tools.lstrip().startswith("["):
        with suppress(ValueError):
            tools = parse_json(tools)
    schemas = (
        isinstance(tools, list) and tools and all(isinstance(tool, Mapping) and _tool_name(tool) for tool in tools)
    )
    return list(tools) if schemas and isinstance(tools, list) else None


def _tool_name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    return str(function.get("name") or "") if isinstance(function, Mapping) else ""


def _message_notes(rows: Sequence[PromptRow], tokenizer: Any, task: TextTask) -> list[str]:
    """Return notes on messages and tools of a file that the prompts do not show as the rows have them."""
    chat, notes = bool(tokenizer.chat_template) and task.chat_template != "never", []
    if not isinstance(task, PromptFile):
        return []
    systems = [row for row in rows if _system(row.prompt)]
    if chat and systems and task.system_prompt:
        notes.append(
            f"data.system_prompt stands in front of the system messages that {len(systems)} of {len(rows)} rows have"
        )
    if chat and systems and not task.system_prompt:
        probe = [{"role": "system", "content": "Mark0Mark"}, {"role": "user", "content": "What is 2+2?"}]
        if "Mark0Mark" not in render(tokenizer, probe):
            notes.append(
                f"the chat template of the model's tokenizer leaves out the system messages of {len(systems)} rows, "
                f"such as {systems[0].source}; put their text into the user's message"
            )
    with_tools = [(row, tools) for row in rows if (tools := tools_of(row))]
    if with_tools:
        row, tools = with_tools[0]
        text = render(tokenizer, opening(row.prompt), tools=tools) if chat else ""
        if hidden := [name for name in map(_tool_name, tools) if name not in text]:
            notes.append(
                f"the column 'tools' of {len(with_tools)} rows has no effect: the prompt of {row.source} does not show "
                f"{hidden[0]}, because the tokenizer has no chat template with tools or data.chat_template is 'never'"
            )
        else:
            notes.append(
                f"the prompts of {len(with_tools)} rows show the tools of their column 'tools'; nothing runs them"
            )
    return notes


def _within_limit(prompts: Sequence[Prompt], task: TextTask) -> list[Prompt]:
    limit = task.max_prompt_tokens
    short_prompts = [prompt for prompt in prompts if len(prompt.tokens) <= limit]
    if len(short_prompts) < len(prompts) and (task.long_prompts == "error" or not short_prompts):
        cut = LETTERS_PER_TOKEN * limit  # beyond it the rest may not have been encoded
        counts = {
            prompt.where: f"{len(prompt.text):,} characters, more than {len(prompt.tokens) - 1:,} tokens"
            if len(prompt.text) > cut
            else f"{len(prompt.tokens)} tokens"
            for prompt in prompts
            if len(prompt.tokens) > limit
        }
        long = [f"{source} ({count})" for source, count in counts.items()]
        raise ConfigError(
            f"{len(long)} of {len(prompts)} rows are over {limit} tokens: {', '.join(long[:5])}; raise "
            "data.max_prompt_tokens, or leave them out with --data.long_prompts drop"
        )
    return short_prompts
