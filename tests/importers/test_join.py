"""Properties of the join: compute up to a step does not depend on interruptions or the order of rows."""

import builders
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scalerl.reading.logs.join import continued_rows, row_steps, spent_by_counter, spent_by_step
from scalerl.reading.logs.points import of_tables
from scalerl.reading.tables.lines import Console
from scalerl.reading.tables.table import table_of


def curve(rows):
    """Return the points of rows in verl's format, without a file."""
    return of_tables([table_of(rows, name="the log")], devices=8, metric="val-core/a/acc/mean@4").rows


def log(seconds):
    rows = []
    for step, took in enumerate(seconds, 1):
        row = {"step": float(step), "timing_s/step": took, "perf/total_num_tokens": 10.0 * took}
        rows.append({**row, "val-core/a/acc/mean@4": step / 1000} if step % 3 == 0 else row)
    return rows


TIMES = st.lists(st.floats(1.0, 1000.0), min_size=3, max_size=40)


@given(seconds=TIMES, data=st.data())
def test_the_order_of_rows_and_exact_duplicates_do_not_matter(seconds, data):
    rows = log(seconds)
    again = data.draw(st.lists(st.sampled_from(rows), max_size=10))
    shuffled = data.draw(st.permutations(rows + again))
    assert curve(shuffled) == curve(rows)


@given(seconds=TIMES, data=st.data())
def test_repeated_steps_of_a_resumed_run_count_once(seconds, data):
    rows = log(seconds)
    crash = data.draw(st.integers(1, len(rows)))
    checkpoint = data.draw(
        st.integers(min(4, crash), crash)
    )  # after the first evaluation: a resumed run, not a new one
    assume(crash - checkpoint != 1)  # one step twice in a row has two evaluations, whose mean is read
    lost = [{name: v * (1 if name == "step" else 0.7) for name, v in row.items()} for row in rows[checkpoint:crash]]
    assert curve(rows[:checkpoint] + lost + rows[checkpoint:]) == curve(rows)


def test_an_evaluation_that_is_repeated_after_a_resume_from_its_own_step_counts_once():
    """Killed after step 7, resumed from the checkpoint of step 5: the second evaluation of step 6 is in force."""
    rows = [{"step": float(step), "timing_s/step": 1.0} for step in (1, 2, 3, 4, 5, 6, 7, 6, 7)]
    rows[2] |= {"val-core/a/acc/mean@4": 0.3}
    rows[5] |= {"val-core/a/acc/mean@4": 0.5}
    rows[7] |= {"val-core/a/acc/mean@4": 0.6}
    assert [(point["step"], point["pass_rate"]) for point in curve(rows)] == [(3, 0.3), (6, 0.6)]


@given(seconds=TIMES, data=st.data())
def test_each_point_costs_the_steps_up_to_it(seconds, data):
    for point in curve(log(seconds)):
        spent = sum(seconds[: point["step"]])
        assert point["device_hours"] == pytest.approx(spent * 8 / 3600) and point["tokens"] == pytest.approx(10 * spent)


@given(seconds=TIMES, data=st.data())
def test_a_counter_restored_from_a_checkpoint_counts_each_step_once(seconds, data):
    total = np.cumsum(seconds)
    crash = data.draw(st.integers(1, len(total)))
    checkpoint = data.draw(st.integers(0, crash))
    steps = np.arange(1.0, len(total) + 1)
    saved = total[checkpoint - 1] if checkpoint else 0.0
    lost = saved + 0.7 * (total[checkpoint:crash] - saved)  # the lost steps took fewer tokens
    counter = np.concatenate([total[:checkpoint], lost, total[checkpoint:]])
    step = np.concatenate([steps[:checkpoint], steps[checkpoint:crash], steps[checkpoint:]])
    spent = spent_by_counter(step, counter, True, "tokens")
    assert spent.by(steps) == pytest.approx(total)


def test_a_counter_that_restarts_from_zero_is_added_to_the_previous_total():
    # 5 steps of 10, a crash after a checkpoint at 5, and 3 more steps of 10
    spent = spent_by_counter(np.arange(1.0, 9), np.array([10.0, 20, 30, 40, 50, 10, 20, 30]), True, "tokens")
    assert spent.total.tolist() == [10, 20, 30, 40, 50, 60, 70, 80] and "reset in 1 places" in spent.notes[0]


def test_a_clock_excludes_interruptions_and_the_startup():
    step, clock = np.arange(1.0, 9), 1.7e9 + np.array([0.0, 60, 120, 180, 40000, 40060, 40120, 40180])
    spent = spent_by_counter(step, clock, False, "the clock")
    assert spent.total.tolist() == [60 * s for s in step] and "interrupted or reset in 1 places" in spent.notes[0]


def test_a_row_also_counts_for_the_skipped_steps_before_it():
    spent = spent_by_step(np.array([10.0, 20, 30]), np.array([2.0, 3, 4]), "time")
    assert spent.total.tolist() == [20, 50, 90] and spent.notes == ()
    assert spent.by(np.array([0.0, 5, 10, 25, 35])).tolist() == [0, 10, 20, 70, 110]


def test_a_step_is_inferred_from_the_column_that_has_it():
    rows = [{"training_step": s, "episode": 64.0 * s} for s in (1.0, 2.0, 3.0)]
    rows += [{"episode": 128.0}, {"episode": 0.0}, {"loss": 1.0}]
    steps = row_steps(table_of(rows), [["training_step"], ["episode"]])
    assert steps[:5].tolist() == [1, 2, 3, 2, 0] and np.isnan(steps[5])


NAMES = st.from_regex(r"[a-z][a-z_@/0-9]{0,12}", fullmatch=True).filter(lambda name: name != "step")


@given(step=st.integers(0, 10**6), row=st.dictionaries(NAMES, st.floats(-1e300, 1e300), max_size=6))
def test_a_console_line_is_read_as_it_was_logged(step, row):
    text = f"(TaskRunner pid=1) {builders.console_line(step, row, builders.numpy_repr)}\n"
    table = Console().read([text])
    assert {name: cells[1].tolist() for name, cells in table.cells.items()} == (
        {name: [value] for name, value in {"step": step, **row}.items()} if row else {}
    )


def by_hand(steps, i):
    """Return the last row before i with the largest step that is smaller than that of i; -1 without one."""
    earlier = [at for at in range(i) if steps[at] < steps[i]]
    return max(earlier, key=lambda at: (steps[at], at), default=-1)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40), st.data())
def test_a_row_continues_the_last_one_with_the_next_smaller_step(steps, data):
    at = sorted(data.draw(st.sets(st.integers(0, len(steps) - 1))))
    found = continued_rows(np.array(steps, float), np.array(at, np.intp))
    assert found == [by_hand(steps, i) for i in at]
