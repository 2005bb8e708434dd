from types import SimpleNamespace

import pytest
import torch
from batches import change
from texts import rollout

from scalerl.core.errors import ConfigError
from scalerl.core.types import Group, Prompt, Score, ScoredGroup, Visit
from scalerl.training.config import LAB
from scalerl.training.config.base import replace
from scalerl.training.config.recipe import SCALERL, OutcomeCredit, PipelineRL, PpoOffPolicy
from scalerl.training.learner.batch import StepSettings, TrainBatch, collate
from scalerl.training.loop.credit import credited
from scalerl.training.loop.loop import check_hope, check_versions, kept_prompts, loss_tokens
from scalerl.training.loop.metrics import batch_row, staleness, why_untrained
from scalerl.training.loop.progress import Progress
from scalerl.training.recipe.advantages import advantages
from scalerl.training.recipe.aggregate import AGGREGATIONS, token_weights


def group(prompt, *rollouts, scores=None):
    scores = [Score(0.0, False)] * len(rollouts) if scores is None else scores
    return ScoredGroup(Group(Visit(Prompt("0" * 16, "", tuple(prompt), "", "t"), 0, 0), rollouts, 0), tuple(scores))


def test_prompt_completion_and_padding_are_at_the_right_positions():
    first = [rollout([7, 8, 9], [True, False, True], versions=3), rollout([4])]
    second = [rollout([2, 3], truncated=True), rollout([1])]
    one = group([5, 6], *first, scores=[Score(1.0, True), Score(-1.0, False)])
    batch = collate([one, group([1], *second, scores=[Score(0.25, False), Score(0.5, True)])])
    assert batch.tokens_BT.tolist() == [[5, 6, 7, 8, 9], [5, 6, 4, 0, 0], [1, 2, 3, 0, 0], [1, 1, 0, 0, 0]]
    assert batch.sampled_BT.int().tolist() == [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0]]
    torch.testing.assert_close(batch.behavior_BT[0], torch.tensor([0.0, 0.0, -0.1, 0.0, -0.3]))
    assert batch.version_BT[0].tolist() == [0, 0, 3, 0, 3]
    assert batch.context_BT[0].tolist() == [0, 0, 3, 0, 3]
    assert batch.prompt_B.tolist() == [0, 0, 1, 1] and batch.length_B.tolist() == [5, 3, 3, 2]
    assert batch.truncated_B.tolist() == [False, False, True, False]
    assert batch.interrupted_B.tolist() == [True, False, False, False]
    assert batch.completion_tokens_PG.tolist() == [[3, 1], [2, 1]]
    assert batch.rewards_PG.tolist() == [[1.0, -1.0], [0.25, 0.5]]
    assert batch.passed_PG.tolist() == [[True, False], [False, True]]
    assert batch.counted_PG.tolist() == [[True, True], [True, True]]


def test_the_staleness_of_sampled_tokens_is_measured_and_bounded_unless_old_ones_are_masked():
    """At update 7, the sampled tokens are 4, 4, 0 and 2 updates old; the inserted one, of version 0, does not count."""
    rows = rollout([4, 5, 6], [True, True, False], versions=[3, 3, 0]), rollout([4, 5], versions=[7, 5])
    batch = collate([group([1], *rows)])
    ages = staleness(batch, 7, PipelineRL(max_lag=4))
    assert ages == {"staleness_mean": 2.5, "staleness_max": 4.0, "stale_share": 0.0}
    assert staleness(batch, 7, PipelineRL(max_lag=3, stale="mask"))["stale_share"] == 0.5
    for policy in (PipelineRL(max_lag=3), PipelineRL(max_lag=3, stale="drop"), PpoOffPolicy(batches=4)):
        with pytest.raises(AssertionError, match="version 3 at update 7; the bound is 3"):
            check_versions(batch, policy, 7)
    with pytest.raises(AssertionError, match="version 7 at update 6"):  # weights that do not exist yet
        check_versions(batch, PipelineRL(max_lag=8, stale="mask"), 6)


def test_the_batch_of_an_update_is_the_example_of_its_documentation():
    passed, failed = Score(1.0, True), Score(-1.0, False)
    first = [rollout([7, 8, 9], [True, False, True], versions=3), rollout([4], versions=3)]
    second = [rollout([2, 3], versions=3), rollout([1], versions=3)]
    groups = [group([5, 6], *first, scores=[passed, failed]), group([1], *second, scores=[failed, passed])]
    rollouts = collate(groups)
    usable_BT = loss_tokens(rollouts, SCALERL, oldest=0)
    keep_P = kept_prompts(as_one_turn(rollouts), usable_BT, SCALERL)
    trained_BT = usable_BT & keep_P[rollouts.prompt_B][:, None]
    weights_BT = token_weights(SCALERL.aggregation, trained_BT, rollouts.prompt_B)
    advantages_B = advantages(SCALERL.advantage, rollouts.rewards_PG[:, None], rollouts.counted_PG[:, None]).view(-1)
    batch = TrainBatch(rollouts, advantages_B, trained_BT, weights_BT, StepSettings(version=4))
    assert batch.advantages_B.tolist() == pytest.approx([1.0, -1.0, -1.0, 1.0], abs=1e-5)
    assert batch.trained_BT.int().tolist() == [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0]]
    torch.testing.assert_close(batch.weights_BT, batch.trained_BT / 6)
    assert batch.rollouts.sampled_PG.tolist() == [[2, 1], [2, 1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"behavior_BT": torch.zeros(4)},
        {"context_BT": torch.zeros(3, 5)},
        {"prompt_B": torch.zeros(2)},
        {"rewards_PG": torch.zeros(2, 3)},
        {"experts_BTLK": torch.zeros(4, 6, 2, 2)},
        {"nucleus": (torch.zeros(3), torch.zeros(2))},
        {"advantages_B": torch.zeros(2, 2)},
        {"trained_BT": torch.zeros(4, 6, dtype=torch.bool)},
    ],
    ids=lambda wrong: "-".join(f"{name}-{getattr(value, 'shape', '')}" for name, value in wrong.items()),
)
def test_tensors_of_a_wrong_shape_are_an_error_where_a_batch_is_made(wrong):
    rollouts = collate([group([1], rollout([2, 3, 4, 5]), rollout([2])), group([1], rollout([2]), rollout([2]))])
    batch = TrainBatch(rollouts, torch.zeros(4), rollouts.sampled_BT, torch.zeros(4, 5))
    with pytest.raises(AssertionError):
        change(batch, **wrong)


def training(completions, trained_B):
    """Return a batch of completions of the given lengths after a prompt of one token; some rows carry loss."""
    rollouts = collate([group([1], *(rollout([2] * n) for n in completions))])
    trained_BT = rollouts.sampled_BT & torch.tensor(trained_B)[:, None]
    zeros_BT = torch.zeros_like(rollouts.behavior_BT)
    return TrainBatch(rollouts, torch.zeros(len(completions)), trained_BT, zeros_BT)


def test_long_and_short_rows_are_in_different_micro_batches():
    batch = training((9, 1, 9, 1), [True] * 4)
    assert [(rows.tolist(), width) for rows, width in batch.micro_batches(20)] == [([0, 2], 10), ([1, 3], 2)]


def test_a_prompt_whose_failures_are_all_truncated_is_dropped():
    passed, failed = Score(1.0, True), Score(-1.0, False)
    cut, whole = rollout([2, 3], truncated=True), rollout([4])
    scores = [failed, passed]
    batch = collate([group([1], cut, whole, scores=scores), group([5], whole, rollout([6, 7]), scores=scores)])
    keep, trained = filtered(batch, SCALERL)
    assert keep == [False, True]
    assert trained == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 1]]
    # if truncated rollouts are trained, or nothing is filtered, both prompts are kept
    for recipe in (replace(SCALERL, truncated="keep"), replace(SCALERL, zero_variance="keep")):
        assert filtered(batch, recipe)[0] == [True, True]


def as_one_turn(batch):
    return credited([], batch, batch.rewards_PG, OutcomeCredit())


def filtered(batch, recipe, oldest=0):
    """Return the prompts that are kept and the tokens that are trained."""
    usable = loss_tokens(batch, recipe, oldest)
    keep = kept_prompts(as_one_turn(batch), usable, recipe)
    return keep.tolist(), (usable & keep[batch.prompt_B][:, None]).int().tolist()


def test_the_filter_does_not_count_rollouts_whose_tokens_are_all_too_old():
    """The oldest version that may be trained is 3. Of the first prompt one reward remains, of the second both."""
    passed, failed = Score(1.0, True), Score(-1.0, False)
    old, new, mixed = (rollout([4, 5], versions=versions) for versions in ([2, 2], [3, 3], [2, 3]))
    pairs = [(old, new), (mixed, new), (old, old), (new, new)]
    batch = collate([group([1], *pair, scores=[failed, passed]) for pair in pairs])
    keep, trained = filtered(batch, SCALERL, oldest=3)
    assert keep == [False, True, False, True]
    assert trained == [[0, 0, 0]] * 2 + [[0, 0, 1], [0, 1, 1]] + [[0, 0, 0]] * 2 + [[0, 1, 1]] * 2
    # at an age that all may have, and without a filter, no rollout is left out
    assert filtered(batch, SCALERL, oldest=2)[0] == [True] * 4
    assert filtered(batch, replace(SCALERL, zero_variance="keep"), oldest=3)[0] == [True] * 4


@pytest.mark.parametrize("truncated", ["exclude", "keep"])
def test_a_rollout_without_a_reward_is_in_no_sum_and_no_denominator(truncated):
    """The batch has the advantages, weights and metrics of the same batch without that rollout."""
    passed, failed = Score(1.0, True), Score(-1.0, False)
    right, wrong, long = rollout([4, 3]), rollout([6, 7]), rollout([2] * 24)
    recipe = replace(SCALERL, truncated=truncated)
    other = group([5], right, wrong, right, scores=[passed, failed, failed])
    lost, whole = (
        collate([group([1], right, *more, wrong, scores=[passed, *scores, failed]), other])
        for more, scores in (((long,), (Score.missing("no reply"),)), ((wrong,), (failed,)))
    )
    keep, trained = map(torch.tensor, filtered(lost, recipe))
    assert keep.tolist() == [True, True]
    assert trained.sum(dim=1).tolist() == [2, 0, 2, 2, 2, 2]
    # 4 tokens of the first prompt and 6 of the second; without the mask, 28 of the first
    trained = trained.bool()
    assert AGGREGATIONS["prompt"](trained, lost.prompt_B)[0, 1].item() == pytest.approx(1 / 2 / 4)
    assert AGGREGATIONS["sample"](trained, lost.prompt_B)[0, 1].item() == pytest.approx(1 / 5 / 2)
    assert AGGREGATIONS["token"](trained, lost.prompt_B)[0, 1].item() == pytest.approx(1 / 10)
    row = batch_row(lost, lost.rewards_PG, keep)
    assert row["pass_rate"] == pytest.approx(2 / 5) and row["reward"] == pytest.approx(-1 / 5)
    assert batch_row(whole, whole.rewards_PG, keep)["pass_rate"] == pytest.approx(2 / 6)


def test_a_prompt_with_one_reward_left_is_dropped():
    passed, missing = Score(1.0, True), Score.missing("no reply")
    batch = collate([group([1], rollout([4]), rollout([6]), scores=[passed, missing])])
    assert filtered(batch, SCALERL)[0] == [False]


CUT, OLD, NEW = rollout([1, 2], truncated=True, versions=3), rollout([1, 2], versions=1), rollout([1, 2], versions=3)
PASSED, FAILED, MISSING = Score(1.0, True), Score(-1.0, False), Score.missing("no reply")


@pytest.mark.parametrize(
    ("rollouts", "scores", "reason"),
    [
        ([NEW, NEW], [PASSED, PASSED], "no prompt had any variance in its rewards"),
        ([CUT, CUT], [FAILED, FAILED], "none of the 2 rollouts can carry loss (2 truncated)"),
        ([NEW, NEW], [MISSING, MISSING], "none of the 2 rollouts can carry loss (2 without a reward)"),
        ([OLD, OLD], [PASSED, FAILED], "none of the 2 rollouts can carry loss (2 too old)"),
        ([CUT, OLD, NEW, CUT], [MISSING, FAILED, MISSING, FAILED],
         "none of the 4 rollouts can carry loss (2 without a reward, 1 truncated, 1 too old)"),
        ([CUT, OLD, NEW, NEW], [FAILED, FAILED, PASSED, PASSED],
         "no prompt had any variance in its rewards among the rollouts that can carry loss "
         "(1 truncated, 1 too old of 4)"),
    ],
)  # fmt: skip
def test_a_skipped_update_has_its_cause(rollouts, scores, reason):
    batch = collate([group([1], *rollouts, scores=scores)])
    usable = loss_tokens(batch, SCALERL, oldest=2)
    assert not kept_prompts(as_one_turn(batch), usable, SCALERL).any()
    assert why_untrained(batch, usable) == reason


def test_truncated_rollouts_that_are_trained_are_no_cause():
    batch = collate([group([1], CUT, CUT, scores=[FAILED, FAILED])])
    usable = loss_tokens(batch, replace(SCALERL, truncated="keep"), oldest=2)
    assert why_untrained(batch, usable) == "no prompt had any variance in its rewards"


@pytest.mark.parametrize(("step", "skipped", "ends"), [(3, 3, True), (3, 2, False), (4, 4, False)])
def test_a_run_whose_first_three_updates_train_nothing_ends_with_the_cure(step, skipped, ends):
    run = SimpleNamespace(progress=Progress(step=step, skipped_steps=skipped), config=LAB)
    if not ends:
        return check_hope(run, "none of the 32 rollouts can carry loss (32 truncated)")
    with pytest.raises(ConfigError, match=r"trained nothing: none of the 32 .* \(recipe\.length\.max_tokens, 69\)"):
        check_hope(run, "none of the 32 rollouts can carry loss (32 truncated)")
