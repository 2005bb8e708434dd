"""What the name of a column says: whether it is a score, and of which prompts. For trainers without a dialect."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scalerl.reading.tables.table import key

AXES = ("device_hours", "flops", "tokens", "compute", "step")
"""Compute columns of points, the best first: in this order they are tried if none is named."""

METRIC_COLUMNS = ("pass_rate", "metric")
"""Metric columns of points, in the order in which they are tried if none is named."""


def are_points(names: Iterable[str]) -> bool:
    """Return whether columns of these names are those of a curve, so that nothing has to be guessed."""
    found = {name.strip() for name in names}
    return not found.isdisjoint(METRIC_COLUMNS) and not found.isdisjoint(AXES)


HELD_OUT, SECOND, OTHER, TRAINING, MINOR = 0, 1, 2, 3, 4
"""Ranks of a metric: mean score on held-out prompts, a substitute for it, another held-out metric, the reward of
training, and a part of that reward."""

EVALUATION_WORD = re.compile(
    r"(?:^|(?<=[^A-Za-z]))(?:eval|evals|evaluation|evaluated|evaluating|val|valid|validation|test|heldout|held_out|held-out|dev|bench|benchmark)"
    r"(?=$|[^A-Za-z])",
    re.IGNORECASE,
)
TRAINING_WORD = re.compile(r"(?:^|_)(?:train|training|rollout|rollouts|actor|critic|episode|batch|env)(?:_|$)")

SCORE = re.compile(
    r"pass_?rate|pass_ratio|pass_at_\d+|pass\d+|(?:mean|avg|maj|acc|best)_at_\d+|accuracy|(?:^|_)acc(?:_|$)|success|solved?"
    r"(?:_|$)|solve_rate|correct|reward|(?:^|_)rew(?:_|$)|(?:^|_)scores?(?:_|$)|(?:^|_)returns?(?:_|$)|win_?rate|exact_match|(?:^|_)em(?:_|$)"
    r"|(?:^|_)f1(?:_|$)|(?:^|_)metric$"
)
"""Words of a mean score, in a name as `table.key` writes it."""
BENCHMARK = re.compile(
    r"(?:^|_)(?:math|aime|amc|gsm_?8k|minerva|olympiad|hmmt|brumo|gpqa|mmlu|arc|bbh|ifeval|countdown|code|coding|humaneval|"
    r"mbpp|livecodebench|lcb|swe_?bench|codeforces|hotpotqa|triviaqa|squad|drop|hellaswag|sudoku|wordle|alfworld|webshop)"
    r"(?:_?(?:bench|diamond|pro|plus|hard|verified|lite|v?\d+))*$"
)
"""Names of benchmarks, which with a word of evaluation are those of a score: `eval/aime_2024`."""
TEST_ONLY = re.compile(
    r"(?:^|_)(?:math_?500|aime|amc|minerva|olympiad|hmmt|brumo|gpqa|mmlu|bbh|ifeval|humaneval|livecodebench|lcb|swe_?bench"
    r"|hellaswag)(?=_|$|\d|bench)"
)
"""Those that nobody trains on."""
NO_SCORE = re.compile(
    r"loss|kl(?:_|$)|entropy|perplexity|ppl|runtime|time|second|length|(?:^|_)len(?:_|$)|token|learning|(?:^|_)lr(?:_|$)"
    r"|grad|norm|(?:^|_)std|stderr|(?:^|_)var(?:_|$)|(?:^|_)min(?:_|$)|(?:^|_)max(?:_|$)|median|count|(?:^|_)num|(?:^|_)n_"
    r"|memory|clip|chosen|rejected|margin|penalty|violation|refuse|error|advantage|baseline|value|zero|positive|threshold"
    r"|(?:^|_)(?:ci\d*|conf)(?:_|$)|_(?:low|high|lower|upper|lo|hi|lb|ub|lcb|ucb)$"
    r"|hist|coef|weight|scale|total_sum|trunc|version|epoch|(?:^|_)step|hit|frac|filter|unsolved|percentile|p\d\d$|running|calculation|(?:^|_)sum(?:_|$)|_per_"
)
"""Words of what is no mean score: losses, times, lengths, spreads, extremes, counts."""
SUBSTITUTE = re.compile(
    r"(?:pass|best|maj)_at_(?!1(?:_|$))\d+|(?:^|_)format|any_|(?:^|_)(?:best|top|elite|peak|highest|record)(?:_(?!at_)|$)"
)
"""Scores of several samples together, of the form of an answer, and the best of several models or steps."""
COMPONENT = re.compile(r"(?:^|_)rewards_.|format|reward_func|_reward_fn")
TELLING = re.compile(r"acc|correct|solve|pass|success|verif|exact|math|win", re.IGNORECASE)
"""Names of metrics that are preferred within a rank, for example before a format reward."""
BARE_TRAINING = re.compile(
    r"(?:mean_|avg_|average_|total_|episode_|train_|training_|batch_)*(?:reward|rew|return|score)s?"
    r"(?:_mean|_avg|_total|_overall)?"
)


def is_score(name: str) -> bool:
    """Return whether a name is that of a mean score."""
    plain = key(name)
    named = SCORE.search(plain) or (is_evaluation(name) and BENCHMARK.search(plain))
    return bool(named) and not NO_SCORE.search(plain)


def rank_of(name: str) -> int | None:
    """Return the rank of a column of an unknown trainer, or None if it is no score.

    Examples: `eval/accuracy` is 0, `val/pass@8` 2, `train/reward` 3, `accuracy` 3, `best_reward` 4, `eval/loss` None.
    """
    plain = key(name)
    if not is_score(name):
        return None
    partial = bool(SUBSTITUTE.search(plain))
    if is_evaluation(name):
        return OTHER if partial else HELD_OUT
    if partial or COMPONENT.search(plain):
        return MINOR
    bare = TRAINING_WORD.search(plain) or BARE_TRAINING.fullmatch(plain)
    return MINOR if "reward" in plain and not bare else TRAINING


def is_evaluation(name: str) -> bool:
    """Return whether a name has a word of evaluation, or is that of a benchmark on which nobody trains."""
    plain = key(name)
    if TEST_ONLY.search(plain) and not TRAINING_WORD.search(plain):
        return True
    return bool(EVALUATION_WORD.search(plain.replace("_", " "))) or plain.startswith(("heldout_", "held_out_"))


def names_no_prompts(name: str) -> bool:
    """Return whether a name is that of a score, such as `accuracy`, and does not say whether it is of training."""
    plain = key(name)
    said = is_evaluation(name) or TRAINING_WORD.search(plain) or BARE_TRAINING.fullmatch(plain) or "reward" in plain
    return is_score(name) and not said
