import copy
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.core.types import Prompt
from scalerl.training.learner.checkpoint import load_state, save_state
from scalerl.training.prompts.curriculum import Curriculum, Mixture


def pool(n):
    return [Prompt(f"{i:016x}", f"q{i}", (1,), "a", "test") for i in range(n)]


def ids(visits):
    return [visit.prompt.id for visit in visits]


def test_an_epoch_visits_every_prompt_once_in_a_new_order():
    curriculum = Curriculum(pool(20), seed=0, retire_at=None)
    first, second = ids(curriculum.draw(20)), ids(curriculum.draw(20))
    assert sorted(first) == sorted(second) == sorted(p.id for p in pool(20))
    assert first != second and first != sorted(first)


def test_the_order_depends_on_seed_and_prompts_but_not_on_the_file_order():
    forward = Curriculum(pool(20), 3, None).draw(20)
    backward = Curriculum(pool(20)[::-1], 3, None).draw(20)
    assert ids(forward) == ids(backward) != ids(Curriculum(pool(20), 4, None).draw(20))


def test_a_prompt_is_retired_at_the_threshold_and_not_below():
    curriculum = Curriculum(pool(3), 0, retire_at=0.9)
    for visit in curriculum.draw(3):
        curriculum.record(visit, {"0": 0.9, "1": 15 / 16, "2": 14 / 16}[visit.prompt.text[1]])
    assert curriculum.live == 1
    assert {visit.prompt.text for visit in curriculum.draw(6)} == {"q2"}


def test_only_the_latest_visit_counts():
    curriculum = Curriculum(pool(1), 0, retire_at=0.9)
    for rate in (0.5, 0.2):
        curriculum.record(curriculum.draw(1)[0], rate)
    assert curriculum.pass_rates == {pool(1)[0].id: 0.2} and curriculum.live == 1


def test_a_prompt_that_awaits_a_result_is_postponed():
    curriculum = Curriculum(pool(10), 0, retire_at=0.9)
    *known, late = curriculum.draw(10)  # the last prompt of an epoch has no result when the next epoch begins
    for visit in known:
        curriculum.record(visit, 0.0)
    for visit in curriculum.draw(9):
        assert visit.prompt.id != late.prompt.id
    curriculum.record(late, 1.0)
    assert late.prompt.id not in ids(curriculum.draw(30))


@settings(max_examples=60)
@given(st.data())
def test_a_restored_curriculum_neither_skips_nor_repeats_prompts(data):
    """Draws have random sizes, results a random order, and the state is saved and restored at random moments."""
    size = data.draw(st.integers(4, 12))
    curriculum = Curriculum(pool(size), 1, retire_at=0.9)
    waiting, retired, per_epoch = [], set(), {}
    for _ in range(12):
        if data.draw(st.booleans()):
            state = copy.deepcopy(curriculum.state())
            curriculum = Curriculum(pool(size), 1, retire_at=0.9)
            curriculum.load_state(state)
        drawn = curriculum.draw(data.draw(st.integers(1, 3)))
        for visit in drawn:
            assert visit.prompt.id not in retired
            per_epoch.setdefault(curriculum.epoch, [])
        waiting += drawn
        for _ in range(data.draw(st.integers(0, len(waiting)))):
            visit = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            rate = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
            curriculum.record(visit, rate)
            if rate >= 0.9:
                retired.add(visit.prompt.id)
    assert curriculum.retired == retired


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_checkpoint_holds_few_bytes_for_each_prompt(tmp_path, tasks):
    """Of 100,000 prompts, a fifth has been visited and a tenth is retired."""

    def make():
        parts = {}
        for task in range(tasks):
            prompts = [Prompt(f"{i:016x}", "q", (1,), "a", str(task)) for i in range(100_000 // tasks)]
            parts[str(task)] = Curriculum(prompts, 0, retire_at=0.9)
        return Mixture(parts, dict.fromkeys(parts, 1.0)) if tasks > 1 else parts["0"]

    curriculum = make()
    for number, visit in enumerate(curriculum.draw(20_000)[:-10]):
        curriculum.record(visit, number % 2)
    began = time.process_time()
    save_state(tmp_path, "trainer", {"curriculum": curriculum.state()})
    assert time.process_time() - began < 0.25
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 20 * 100_000
    restored = make()
    restored.load_state(load_state(tmp_path, "trainer")["curriculum"])
    assert restored.num_retired == curriculum.num_retired == 9995
    assert restored.draw(100) == curriculum.draw(100)
    states = [json.dumps(one.state(), default=np.ndarray.tolist) for one in (restored, curriculum)]
    assert states[0] == states[1]
