"""Invalid command lines, paths and TOML files: each is refused by the rule of campaign.py."""

import os
from pathlib import Path

import pytest

from robustness.campaign import Case, check_here, write

POINTS = "".join(f'{{"flops": {n}e12, "pass_rate": {0.2 + 0.02 * n:.2f}}}\n' for n in range(12))
LONG = "n" * 300
VERBS = (
    "train", "plan", "study", "resume", "fit", "forecast", "compare", "backtest", "report", "score", "eval",
    "recipes", "import", "new", "frontier",
)  # fmt: skip
DRY = ("train", "--dry-run")


def nothing(here):
    """Do nothing; an `arrange` for cases without files."""


def options(fault, *words, expect=(), arrange=nothing, allowed=(1, 2)):
    return Case(f"options: {fault}", words, arrange, expect, allowed)


def toml(fault, text, expect, allowed=(2,)):
    return Case(f"configuration: {fault}", ("train", "c.toml", "--dry-run"), write("c.toml", text), expect, allowed)


def plan(fault, text, expect):
    return Case(f"study plan: {fault}", ("study", "s.toml", "--dry-run"), write("s.toml", text), expect, (2,))


ARMS = "[arms.one]\n[arms.two]\nrecipe.loss.max_ratio = 8\n"

PLANS = [
    plan("one arm", "[arms.one]", "needs 2 to 1000 arms"),
    plan("an arm's name that leaves the folder", '[arms."../../x"]\n[arms.two]', "name of an arm"),
    plan("an unknown key", "sedes = [1]\n" + ARMS, "seeds"),
    plan("a negative seed", "seeds = [-1]\n" + ARMS, "seeds"),
    plan("an unknown reference", 'reference = "three"\n' + ARMS, "reference"),
    plan("changes of unknown keys", ARMS + "[changes]\nstesp = 5", "stesp"),
    plan("an arm without a chance of evaluations", "[arms.one]\nsteps = 1\n[arms.two]\nsteps = 2", "evaluations"),
    plan("broken", "[arms.one", "TOML"),
]  # fmt: skip

TOMLS = [
    toml("broken", "steps = ", "TOML"),
    toml("Latin-1", b'preset = "caf\xe9"', "TOML"),
    toml("a byte-order mark", "\ufeffsteps = 50", "steps = 50", (0,)),
    toml("nested deeply", "suites = " + "[" * 5000 + "]" * 5000, "nested"),
    toml("an integer of 5,000 digits", "steps = " + "9" * 5000, "digits"),
    toml("400,000 unknown keys", "".join(f"key_{n} = 1\n" for n in range(400_000)), "1,048,576"),
    toml("a NUL in a path", '[model]\nkind = "hf"\npath = "a\\u0000b"', "path"),
    toml("a task without a kind", '[[data]]\nname = "a"\n[[data]]\nname = "b"', "kind"),
    toml("1e11 sequences an evaluation", "[evaluation]\nprompts = 10000000\nsamples = 10000", "sequences"),
    toml("1e10 completions", "[recipe]\nprompts_per_step = 1000000\ngenerations_per_prompt = 10000", "per step"),
]  # fmt: skip

NUMBERS = {  # option -> the words before it
    "--bounds": ("fit", "p.jsonl"), "--exclude-below": ("fit", "p.jsonl"), "--target": ("forecast", "p.jsonl"),
    "--level": ("compare", "p.jsonl", "--versus", "p.jsonl"), "--fractions": ("backtest", "p.jsonl"),
    "--at": ("forecast", "p.jsonl"),
}  # fmt: skip

WORDS = [
    options("no command of that name", "trian", expect="did you mean 'train'"),
    *(options(f"{verb} --bogus", verb, "--bogus") for verb in ("train", "fit", "import")),
    *(options(f"{verb} without arguments", verb, expect="required") for verb in VERBS
      if verb not in ("train", "plan", "recipes", "import")),
    options("import without arguments", "import", expect="type `scalerl import PATH`"),
    *(options(f"{verb} of no such path", verb, "no-such-place", *more, expect="no-such-place") for verb, *more in (
        ("train", "--dry-run"), ("plan",), ("study", "--dry-run"), ("resume",), ("fit",), ("forecast",),
        ("compare", "--versus", "p"), ("backtest",), ("report",), ("score", "--task", "math"), ("import",))),
    *(options(f"{verb[0]} {option} {value}", *verb, option, value, *([value] if option == "--bounds" else []),
              arrange=write("p.jsonl", POINTS)) for option, verb in NUMBERS.items()
      for value in ("nan",)),
    options("watch of no such path", "watch", "nowhere", expect="name runs, studies, or a directory"),
    *(options(f"watch {' '.join(words)}", "watch", *words, ".", expect="or an address of this machine")
      for words in (("--host", "203.0.113.7"), ("--port", "99999"))),
    options("--steps of 6,000 digits", *DRY, "--steps", "9" * 6000, expect="steps"),
    options("a list as two words", *DRY, "--data.operations", "2", "6", expect="[2, 6]"),
    options("a loss that drops an option", *DRY, "--recipe.loss.max_ratio", "4", "--recipe.loss", "gspo",
            expect="max_ratio"),
    options("bytes that are no UTF-8", *DRY, "--recipe.name", os.fsdecode(b"\xff"), expect="UTF-8"),
    options("--run-dir with --dry-run", *DRY, "--run-dir", "x", expect="--run-dir"),
    options("--run-dir with a NUL character", "train", "--run-dir", "a\0b", expect="NUL"),
    options("seeds from -1", "study", "loo", "--dry-run", "--seeds=-1,2", expect="--seeds"),
    options("a budget of 0", "study", "loo", "--dry-run", "--budget", "0", expect="--budget: got 0"),
    options("an arm that is not there", "study", "loo", "--dry-run", "--only", "none-such", expect="--only"),
    options("runs of a study that is not there", "study", "loo", "--dry-run", "--reuse", "nowhere", expect="nowhere"),
    options("a GPU that nobody has", "plan", "--gpu", "H900", expect="H100"),
    *(options(f"plan --transfer-s {value}", "plan", f"--transfer-s={value}", "--generator-tokens-per-s", "9",
              "--trainer-tokens-per-s", "9", expect="--transfer-s")
      for value in ("nan", "-1")),
    options("eval without a suite", "eval", "model", expect="--suite"),
    options("eval at temperature nan", "eval", "m", "--suite", "aime-24", "--temperature", "nan", expect="temperature"),
    options("score by no verifier", "score", "x", "--task", "maths", expect="math"),
    options("score by code of a row", "score", "s.jsonl", "--task", "custom", expect="allowed: arithmetic, code",
            arrange=write("s.jsonl", '{"completion": "", "function": "antigravity:f", "params": {}, "row": {}}\n')),
    *(options(f"score: {fault}", "score", "s.jsonl", "--task", "math", arrange=write("s.jsonl", text), expect=expect)
      for fault, text, expect in (
          ("blank lines", "\n\n", "no rows"), ("a list", "[1]\n", "line 1"),
          ("no answer", '{"completion": "a"}', "answer"),
          ("completion a number", '{"completion": 5, "answer": "5"}', "completion"))),
]  # fmt: skip


def a_run(here: Path) -> None:
    """Create the files of the paths below."""
    (here / "p.jsonl").write_text(POINTS)
    (here / "dangling.jsonl").symlink_to("nowhere")
    (here / "circle.jsonl").symlink_to("circle.jsonl")
    (here / "folder.jsonl").mkdir()
    (here / "folder.toml").mkdir()
    os.mkfifo(here / "pipe.jsonl")
    os.mkfifo(here / "pipe.toml")
    (here / "run").mkdir()
    (here / "run" / "config.toml").mkdir()
    (here / "run" / "points.jsonl").mkdir()
    (here / "zero.jsonl").symlink_to("/dev/zero")
    (here / "zero.toml").symlink_to("/dev/zero")


ODD = ("folder", "pipe", "zero", "dangling", "circle")


def place(verb, path, expect=(), allowed=(1, 2)):
    return Case(f"path: {' '.join(verb)} {path[:40]}", (*verb, path), a_run, expect, allowed)


PATHS = [
    *(place(("fit",), f"{name}.jsonl", f"{name}.jsonl") for name in ODD),
    place(("score", "--task", "math"), "pipe.jsonl", "pipe.jsonl"),
    *(place(("train",), f"{name}.toml", f"{name}.toml") for name in ("folder", "pipe", "zero")),
    place(("study",), "pipe.toml", "pipe.toml"),
    *(place(("fit",), path) for path in (LONG, "p.jsonl/x.jsonl", "\n.jsonl")),
    *(place(verb, LONG) for verb in (("import",), ("resume",), ("eval", "--suite", "aime-24"))),
    *(place(verb, path) for verb in (("score", "--task", "math"), ("resume",), ("eval", "--suite", "aime-24"))
      for path in ("", ".")),  # fit and import read the only log of a directory
    *(place(("report", "p.jsonl", "-o"), path) for path in ("p.jsonl/x.html", ".", LONG + ".html", "/proc/x.html")),
    *(place(("import", "p.jsonl", "-o"), path) for path in ("p.jsonl/x", ".", "/proc/x")),
    *(place(("resume",), path, path) for path in ("run", "p.jsonl", "pipe.jsonl")),
    place(("fit",), "run", "run"),
]  # fmt: skip


@pytest.mark.parametrize("case", [*PLANS, *TOMLS, *WORDS, *PATHS], ids=lambda case: case.name)
def test_invalid_arguments_are_refused_in_one_line(case, tmp_path, monkeypatch, no_prospect):
    check_here(case, tmp_path, monkeypatch)
