"""Reads lines of text into rows: JSON lines, dictionaries between progress bars, verl's lines, blocks and own prints.

A line is one of these:

    {"step": 10, "eval/accuracy": 0.4}                                 a JSON object, or a Python dictionary in any text
    step:5 - critic/score/mean:0.4 - timing_s/step:61.2                verl's console
    ===== Step 5/50 =====                                              a header; the pairs that follow belong to it
      • Avg Reward: 0.32
    Step 10 | Reward: 0.43 | Time: 45.1s                               pairs with their step
    │ ppo_actor/task_reward/avg │ 4.1e-01 │ timeperf/rollout │ ...     a grid
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from scalerl.reading.tables.errors import TooEarly
from scalerl.reading.tables.names import EVALUATION_WORD, is_score
from scalerl.reading.tables.numbers import number_of
from scalerl.reading.tables.point_rows import Ended, left_out
from scalerl.reading.tables.table import LONGEST_WORD, Builder, Table

BAR, BAR_TOTAL, LINE_TIME = "@bar", "@bar_total", "@line_time"
"""Columns that this reader adds: the step of the progress bar before a dictionary, its end, the time of the line."""

BLOCK_KIND = "printed names and values"
"""Kind of a row from several lines."""

LINES_AT_ONCE = 512
"""Lines that are parsed together."""

MOST_JOINED = 10_000
"""Most lines of one dictionary that was printed over several lines; the settings of verl have about 700."""
NARROWEST = 40
"""Characters of the narrowest terminal at whose width lines are cut."""
MOST_SHAPES = 1_000
"""Most forms of a line with a step that are remembered."""
LONGEST_LINE = 4_000
"""Characters of the longest line in which pairs of names and values are searched."""

COLOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
RAY = re.compile(r"^\s*\([^()]*\bpid=[^)]*\)\s?")
VERL_LINE = re.compile(r"(?:^|[\s)\]])step:(\d{1,15}) - (.+:.+)$")
BAR_PATTERN = re.compile(r"\|\s*(\d{1,15})/(\d{1,15}) \[")
TIME = re.compile(r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d")
WORDS_OF_STEP = "global[ _]?step|train(?:ing)?[ _]step|step|iteration|iter|rollout|update|perf|eval|episode|epoch|batch"
LABEL = re.compile(rf"\b({WORDS_OF_STEP})s?\b[ _]*[:=#]?[ \t]*\[?(\d{{1,15}})\b", re.IGNORECASE)
"""The step of a line, `Step 10` or `iteration=10`."""
HEADER = re.compile(
    r"^[^\w]*(?:\w+ ){0,2}?(global step|train step|step|iteration|iter|update|rollout|episode|epoch)s?"
    r"\s*[:#]?\s*(\d{1,15})\s*(?:(?:/|of)\s*\d+)?[^\w]*$",
    re.IGNORECASE,
)
"""A line with only a step, `===== Step 5/50 =====`, which begins a block."""
NESTED = re.compile(
    r"\b(epoch|episode)s?\b\W{0,3}(\d{1,9})(?:\s*(?:/|of)\s*\d{1,9}\W{1,6}(?:iter(?:ation)?|batch|step)?s?\W{0,3}"
    r"|.{0,200}?\|\s*)(\d{1,9})\s*/\s*\d{1,9}\b",
    re.IGNORECASE,
)
"""A step within an epoch, `Epoch:[1/2](100/1500)` or `Episode [1/20]: 5%|#  | 6/125 [`."""
COARSE = {"batch": 1, "episode": 2, "epoch": 3}
"""Words that count steps only if no other one does, the finest first."""
SAMPLE = "sample/"
"""Prefix of the means of the parts of a step, if a line of its own began the step."""
SAMPLE_LABEL = re.compile(r"^\W*(?:rollout|episode|batch|sample)s?\b\s*[:=#]?\s*\[?\d{1,9}\b", re.IGNORECASE)
FRAGMENT = re.compile(r"\S*:\S+(?: - [^\s:]+:\S+)*")
"""The rest of a line of verl that was cut at the width of a terminal."""
FINISHED = re.compile(
    r"\btraining (?:is |has |was )?(?:now )?(?:complete[d]?|finished|done)\b|\bfinished training\b|^wandb: Run summary:"
    r"|\bfinal validation metrics\b",
    re.IGNORECASE,
)
"""A line after the last step of a run."""
PROGRESS = re.compile(r"\b(?:train |global )?step (\d{1,15})\s*/\s*\d+", re.IGNORECASE)
"""`Epoch 1/1 Step 5/100 Train step 5/100 done.` (AReaL), which begins a block too."""

PRINTED_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf"
PRINTED_UNIT = r"%|ms|seconds|secs|sec|s|min|h"
EQUALS = re.compile(rf"([A-Za-z_][\w/@.\-]*)\s?=\s?({PRINTED_NUMBER})({PRINTED_UNIT})?(?=$|[\s,;|)\]}}])")
COLON = re.compile(
    r"([A-Za-z_][\w/@.\-]*(?: [\w/@.\-()]+){0,5}?(?: ?\([^()]*\))?)\s*:\s*"
    rf"({PRINTED_NUMBER})({PRINTED_UNIT})?(?=$|[\s,;|)\]}}])"
)
SPACE = re.compile(rf"([A-Za-z_][\w/@.\- ]*?)\s+({PRINTED_NUMBER})\s?({PRINTED_UNIT})?")
"""`Reward 0.43` between bars."""
DURATION = re.compile(r"\d+(?:\.\d+)?(?:s|m|h)")
LOG_PREFIX = re.compile(r"^.*?\b(?:INFO|WARNING|DEBUG|SUCCESS)\b[\]: \-|]*")
LITERAL = re.compile(r"'((?:[^'\\]|\\.)*)'\s*:\s*(?:'((?:[^'\\]|\\.)*)'|((?:(?:np|torch)\.)?\w*\([^()]*\)|[-+.\w]+))")
"""A key and a number, a text or a call of a flat dictionary, as Python prints it."""


def read_lines(path: Path, lines: Iterable[str]) -> Table:
    """Read JSON lines, a console, or prints.

    Raises:
        CurveError: Too many of the objects cannot be read.
        TooEarly: No line has numbers.
    """
    console, ended = Console(), Ended(lines)
    table = console.read(ended)
    last = None if ended.whole else console.lines
    others = sum(count for kind, count in console.kinds.items() if kind != "JSON lines")
    # in a log of other lines, such objects are answers or calls of tools
    notes = left_out(path, "JSON objects", console.bad, console.objects, last) if console.objects > others else ()
    if console.left and not notes:
        notes = (f"the last line of {path.name} is incomplete (was the run killed?) and was left out",)
    notes += (f"further lines of a step, of which the mean counts: {console.meant}",) if console.meant else ()
    notes += ("steps begin anew in each epoch and were counted on",) if console.counted_on else ()
    if not table.names:
        raise TooEarly(
            f"{path} has no numbers in a known form: no JSON, no CSV, and no line with the metrics of a step, "
            "such as 'Step 5: reward=0.4'; give the trainer's own log"
        )
    return replace(table, name=path.name, notes=notes, grows=True, ended=console.ended)


class Console:
    """Collects rows from lines in their order."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.objects = 0
        """Number of lines that are JSON objects."""
        self.bad: dict[int, str] = {}
        """Numbers of the lines that begin an object and cannot be read."""
        self.kinds: dict[str, int] = {}
        """Number of rows by the kind of their line."""
        self.lines = 0
        """Number of lines so far."""
        self.cut = False
        """Whether the last line has no line end, and so perhaps an incomplete last value."""
        self.left = False
        """Whether that value was left out, because the row before does not end with its name."""
        self._bar: tuple[int, int] | None = None
        self._open: list[str] = []
        self._depth, self._width, self._ends_full = 0, 0, False
        self._held = ""
        self._trace = False
        self.meant = 0
        """Number of further values of a score in one step, of which the mean counts."""
        self.counted_on = False
        """Whether steps began again in a new epoch."""
        self.ended = ""
        """How the run ended, by the lines after its last step; "" if they do not say."""
        self._shapes: set[str] = set()
        self._outer: int | None = None
        self._begun = False
        self._means: dict[str, int] = {}
        self._printed: dict[str, Any] = {}
        self._names: tuple[str, ...] = ()
        self._block: dict[str, Any] = {}
        self._label: tuple[str, int] | None = None
        self._section = ""
        self._epoch, self._offset, self._last_step, self._from_zero = 0, 0, 0, False

    def read(self, lines: Iterable[str]) -> Table:
        """Return the rows of all lines."""
        lines = iter(lines)
        while chunk := list(islice(lines, LINES_AT_ONCE)):
            if not self._objects(chunk):
                for line in chunk:
                    self._line(line)
        self._release()
        self._close_block()
        return self.builder.table(form=max(self.kinds, key=lambda kind: self.kinds[kind], default=BLOCK_KIND))

    def _objects(self, chunk: list[str]) -> bool:
        """Read lines that are JSON objects, all at once, which takes half of the time; return whether they are."""
        if self._open or not all(line.startswith('{"') and line.endswith("}\n") for line in chunk):
            return False
        try:
            rows = json.loads(f"[{','.join(chunk)}]")
        except (ValueError, RecursionError):
            return False
        # an array that is cut by a line end could make one object of two lines
        if len(rows) != len(chunk) or set(map(type, rows)) != {dict}:
            return False
        self.lines, self.objects, self.cut = self.lines + len(rows), self.objects + len(rows), False
        self.kinds["JSON lines"] = self.kinds.get("JSON lines", 0) + len(rows)
        for row in rows:
            self.builder.add(row)
        return True

    def _line(self, line: str) -> None:
        """Read one line; a carriage return separates the states of a progress bar."""
        self.lines += 1
        self.cut = not line.endswith(("\n", "\r"))  # the last value may be incomplete
        for part in line.split("\r") if "\r" in line else (line,):
            self._part(part)

    def _part(self, text: str) -> None:
        if "\x1b" in text:
            text = COLOR.sub("", text)
        if "pid=" in text:
            text = RAY.sub("", text)
        text = text.rstrip()
        stripped = text.strip()
        if self._trace or stripped.startswith("Traceback (most recent call last)"):
            # the frames are indented; the line of the exception is the last
            self._trace = text[:1] in ("", " ", "\t") or stripped.startswith("Traceback")
            return
        if FINISHED.search(stripped) and not re.search(r"(?:epoch|step|iteration)\W*\d", stripped, re.IGNORECASE):
            self.ended = "finished"
        if self._open and self._continue(text):
            return
        if self._held:
            if FRAGMENT.fullmatch(stripped) and not VERL_LINE.search(stripped):
                self._held += stripped
                return
            self._release()
        if not stripped:
            return
        if stripped[0] == "{" and stripped[1:2] != "'":
            if (row := json_row(stripped)) is not None:
                self.objects += 1
                self._emit("JSON lines", row)
                return
            if stripped[1:2] == '"':
                self.bad[self.lines] = f"{stripped:.60}"
                return
        if "step:" in stripped and VERL_LINE.search(stripped):
            self._held = stripped
            return
        if "|" in stripped and (bars := BAR_PATTERN.findall(stripped)):
            self._bar = (int(bars[-1][0]), int(bars[-1][1]))
        if "{'" in stripped or '{"' in stripped:
            if stripped.count("{") > stripped.count("}"):
                self._open, self._depth = [stripped], stripped.count("{") - stripped.count("}")
                self._width, self._ends_full = len(text), True
            else:
                self._dictionary(stripped)
            return
        if len(stripped) <= LONGEST_LINE:
            self._plain(stripped)

    def _continue(self, text: str) -> bool:
        """Read a further line of a dictionary that was printed over several lines; return whether it is one.

        It is indented, or the line before was cut at the width of the terminal. Any other line ends what was open.
        """
        before = self._open[-1]
        cut = self._ends_full and len(before) >= NARROWEST and before[-1] not in ",{[("
        if VERL_LINE.search(text) or not (cut or text[:1] in ("", " ", "\t", "'", '"', "}", "]", ")")):
            self._open = []
            return False
        self._ends_full = len(text) == self._width
        stripped = text.strip()
        quoted = self._open[0][0] in "('\"" and stripped[:1] in ("'", '"')  # a text that was printed in parts
        self._open.append(text if cut else stripped.strip("'\"") if quoted else stripped)
        self._depth += text.count("{") - text.count("}")
        if self._depth > 0 and len(self._open) <= MOST_JOINED:
            return True
        opened, self._open = "", self._open
        for part in self._open:
            opened += part if not opened or opened[-1] not in ",{[(" else f" {part}"
        self._open = []
        if opened.count("{") == 1 or not opened.startswith("{"):  # else settings, dictionaries in a dictionary
            self._dictionary(opened)
        return True

    def _release(self) -> None:
        """Read the line of verl that may have been continued."""
        held, self._held = self._held, ""
        if held and (match := VERL_LINE.search(held)):
            self._verl(match)

    # ------------------------------------------------------------------------------------------------ kinds of lines

    def _verl(self, match: re.Match[str]) -> None:
        row: dict[str, Any] = {"step": int(match[1])}
        pairs = match[2].split(" - ")
        if self._is_cut(pairs[-1].rpartition(":")[0]):
            pairs = pairs[:-1]
        for pair in pairs:
            name, _, value = pair.rpartition(":")
            if name:
                row[name] = value
        if time := TIME.search(match.string[: match.start(1)]):
            row[LINE_TIME] = time[0].replace("/", "-")
        self._emit("verl's console", row)

    def _dictionary(self, text: str) -> None:
        start = min(place for place in (text.find("{'"), text.find('{"')) if place >= 0)
        before, row = text[:start], literal_row(text[start:])
        if not row:
            return
        labels = list(LABEL.finditer(before[-300:])) if before else []
        if labels and not any(name.rsplit("/", 1)[-1] in ("step", "global_step") for name in row):
            word, number = labels[-1][1].lower(), int(labels[-1][2])
            row[label_column(word, list(row))] = number
        elif "nitial validation" in before:  # verl prints it without a step
            row.setdefault("step", 0)
        elif row == self._printed and any(is_telling(value) for value in row.values()):
            return  # printed twice, as by two loggers
        self._printed = dict(row)
        if self._bar is not None:
            row[BAR], row[BAR_TOTAL] = self._bar
        if before and (time := TIME.search(before)):
            row[LINE_TIME] = time[0].replace("/", "-")
        self._emit("printed dictionaries", row)

    def _plain(self, text: str) -> None:
        if "│" in text or "┃" in text:
            self._grid(text)
            return
        if match := HEADER.match(text):
            if self._is_new(text, int(match[2])):
                self._header(match[1].lower(), int(match[2]))
                self._begun = True
            return
        if ":" not in text and "=" not in text and "|" not in text:
            self._progress(text)
            return
        pairs = pairs_of(text)
        if pairs and text.endswith(pairs[-1][1]) and self._is_cut(pairs[-1][0]):
            pairs = pairs[:-1]
        if not pairs:
            if (nested := NESTED.search(text)) and nested[1].lower() == "episode":
                self._begin_epoch(int(nested[2]))
                self._outer = int(nested[3])
            elif not self._progress(text) and text.endswith((":", "...")):
                self._section = "validation/" if EVALUATION_WORD.search(text) else ""
            return
        scored = any(is_score(name) for name, _ in pairs)
        if self._begun and self._label is not None and SAMPLE_LABEL.match(text):
            self._add([(SAMPLE + name, value) for name, value in pairs if not LABEL.fullmatch(f"{name} {value}")])
            return
        labels = list(LABEL.finditer(text))
        if nested := NESTED.search(text) if scored else None:
            self._nested(nested[1].lower(), int(nested[2]), int(nested[3]))
        elif labels:
            # of `Epoch 3, Step 20`, the finest; of `Step 20/100`, the first number
            epochs = [int(match[2]) for match in labels if match[1].lower() == "epoch"]
            best = min(labels, key=lambda match: (COARSE.get(match[1].lower(), 0), match.start()))
            if not scored and not self._is_new(text, int(best[2])):
                return
            if epochs and len(labels) > 1:
                self._begin_epoch(epochs[0])
            self._header(best[1].lower(), int(best[2]))
        elif scored and (bars := BAR_PATTERN.findall(text)):
            self._header("step", int(bars[-1][0]))
        elif self._label is None and not scored:
            return
        begins = bool(nested or labels)
        prefix = "validation/" if begins and EVALUATION_WORD.search(text.split(":")[0]) else self._section
        named = [
            (name if EVALUATION_WORD.match(name) or not prefix else prefix + name, value)
            for name, value in pairs
            if not LABEL.fullmatch(f"{name} {value}")
        ]
        if begins:
            self._add(named)
        for column, value in named:
            if column in self._block and self._label is None:
                self._close_block()
            self._block.setdefault(column, value)
        if time := TIME.search(text[:60]):
            self._block.setdefault(LINE_TIME, time[0].replace("/", "-"))
        if self._label is None:
            self._close_block()

    def _is_cut(self, name: str) -> bool:
        """Return whether the last value of a last line without an end may be incomplete, and note it."""
        left = self.cut and self._names[-1:] != (name,)
        self.left = self.left or left
        return left

    def _is_new(self, text: str, number: int) -> bool:
        """Return whether a step without a score begins a block; a step of an answer goes back and looks different."""
        shape = re.sub(r"\d[\d.]*", "#", text)[:80]
        last = max(self._last_step, 0 if self._label is None else self._label[1])
        if number < last and shape not in self._shapes:
            return False
        if len(self._shapes) < MOST_SHAPES:
            self._shapes.add(shape)
        return True

    def _nested(self, word: str, outer: int, inner: int) -> None:
        """Begin the block of a step within an epoch; epochs within an episode (OpenRLHF) are parts of its next step."""
        if word == "epoch" and self._outer is not None:
            self._header("step", self._outer + 1)
            return
        self._begin_epoch(outer)
        if word == "episode":
            self._outer = inner
        self._header("step", inner)

    def _add(self, pairs: list[tuple[str, str]]) -> None:
        """Add values to the block of a step; several lines of it count with their mean."""
        for column, value in pairs:
            number, before = number_of(value), self._block.get(column)
            if number is None:
                continue
            count = self._means.get(column, 0)
            if before is not None and not count:
                continue
            self._block[column] = (float(before) * count + number) / (count + 1) if before is not None else number
            self._means[column] = count + 1
            self.meant += bool(count) and is_score(column)

    def _progress(self, text: str) -> bool:
        """Begin a block at a line such as `Train step 5/100 done.`; return whether it is one."""
        matches = list(PROGRESS.finditer(text)) if len(text) < 200 else []
        if matches:
            self._header("step", int(matches[-1][1]))
        return bool(matches)

    def _grid(self, text: str) -> None:
        cells = [cell.strip() for cell in re.split("[│┃]", text)]
        for name, value in pairwise(cells):
            if name and not name[0].isdigit() and value and (number := number_of(value)) is not None:
                self._block.setdefault(name, number)

    # ----------------------------------------------------------------------------------------------- blocks and rows

    def _begin_epoch(self, number: int) -> None:
        """Note the epoch of a line; in a new one, steps may be counted from the beginning again."""
        if number != self._epoch:
            self._close_block()
            self._epoch, self._offset = number, self._last_step + self._from_zero if self._last_step else 0

    def _header(self, word: str, number: int) -> None:
        if word == "epoch":
            if number != self._epoch and self._label is not None and self._label[0] != "epoch":
                self._close_block()
                # steps of a new epoch may be counted from 1 again
                self._epoch, self._offset = number, self._last_step if number > self._epoch else 0
                return
            self._epoch = number
        step = number
        if word != "epoch" and self._offset and number <= self._last_step:
            step = self._offset + number
            self.counted_on = True
        elif word != "epoch":
            self._offset = 0
        if self._label != (word, step):
            self.ended = ""
            self._close_block()
            self._label = (word, step)
        self._section = ""

    def _close_block(self) -> None:
        row, label = self._block_row(), self._label
        self._block, self._label, self._means, self._begun = {}, None, {}, False
        if not row:
            return
        if label is not None and label[0] != "epoch":
            self._from_zero = self._from_zero or label[1] == 0
            self._last_step = max(self._last_step, label[1])
        self._emit(BLOCK_KIND, row)

    def _block_row(self) -> dict[str, Any]:
        """Return the row of the open block, which later lines may continue; {} without one."""
        if not self._block or self._label is None:
            return self._block
        return {label_column(self._label[0], list(self._block)): self._label[1], **self._block}

    def _emit(self, kind: str, row: dict[str, Any]) -> None:
        if kind != BLOCK_KIND:
            self.ended = ""
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self._names = tuple(name for name in row if name not in (BAR, BAR_TOTAL, LINE_TIME))
        self.builder.add(row)


def is_telling(value: Any) -> bool:
    """Return whether a value is hardly equal by accident in two rows: it has more than two decimals."""
    number = number_of(value) if isinstance(value, str) else value
    return isinstance(number, float) and number != round(number, 2)


def json_row(text: str) -> dict[str, Any] | None:
    """Return a JSON object, or None if a text is none."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def literal_row(text: str) -> dict[str, Any]:
    """Return the dictionary at the start of a text, as Python or JSON prints it; {} if there is none."""
    if text[1:2] == '"':
        try:
            row, _ = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return {}
        return row if isinstance(row, dict) else {}
    end = text.rfind("}")
    if '"' not in text and "\\" not in text:
        try:  # as JSON, which is three times as fast
            row = json.loads(text[: end + 1].replace("'", '"'))
            return row if isinstance(row, dict) else {}
        except (ValueError, RecursionError):
            pass
    if text.count("{") > 1:
        try:
            row = ast.literal_eval(text[: text.rindex("}") + 1])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
        else:
            return {str(name): value for name, value in row.items()} if isinstance(row, dict) else {}
    return {
        name: word if len(word) <= LONGEST_WORD else ""
        for name, quoted, plain in LITERAL.findall(text[: end + 1])
        if (word := quoted or plain) not in ("True", "False", "None", "")
    }


def pairs_of(text: str) -> list[tuple[str, str]]:
    """Return the names and values of a line, `reward=0.4, loss: 0.1` or `| Reward 0.4 | Loss 0.1`."""
    text = LOG_PREFIX.sub("", text, count=1)
    pairs = [(name, value + unit) for name, value, unit in EQUALS.findall(text)]
    if ":" in text:
        unread = EQUALS.sub(" ", text) if pairs else text
        for part in re.split(r"[|,;\t]| - ", unread):
            for name, value, unit in COLON.findall(part):
                label = LABEL.match(name)
                name = name[label.end() :].strip(" ])/") if label else name.strip()
                if name and name[0].isalpha():
                    pairs.append((name, value + unit))
    if not pairs and (label := LABEL.search(text)) and re.match(r"[\s/\d\])]*[:\-|]", text[label.end() :]):
        text = "|".join([text[: label.end()], *re.split(r"[,;|]", text[label.end() :].lstrip(" /0123456789]):-"))])
    if not pairs and "|" in text:
        for cell in text.split("|"):
            if match := SPACE.fullmatch(cell.strip()):
                pairs.append((match[1], match[2] + (match[3] or "")))
            elif DURATION.fullmatch(cell.strip()):  # `Step 12 | 45.2s | Reward 0.43`
                pairs.append(("step_time", cell.strip()))
    return pairs


def label_column(word: str, names: list[str]) -> str:
    """Return the column of a step that was printed before a row: `perf 5: {...}` counts rollouts (slime)."""
    word = word.replace(" ", "_")
    if word in ("perf", "rollout"):
        return "rollout/step"
    if word == "eval":
        return "eval/step"
    if word in ("step", "update") and names and all(name.startswith("train/") for name in names):
        return "train/step"
    return word
