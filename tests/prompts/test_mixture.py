"""Shares of tasks: every batch has them, a resume keeps them, and other tasks take over those of retired tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.core.errors import ConfigError
from scalerl.core.types import Prompt
from scalerl.training.config import PRESETS
from scalerl.training.config.base import replace
from scalerl.training.config.data import ArithmeticTask, ProgramsTask
from scalerl.training.learner.checkpoint import load_state, save_state
from scalerl.training.loop.warm_start import make_tokenizer
from scalerl.training.prompts.curriculum import Curriculum, Mixture, make_curriculum
from scalerl.training.prompts.dataset import load_prompts


def pool(task, n):
    return [Prompt(f"{task}{i:03x}", f"{task}{i}", (1,), "a", task) for i in range(n)]


def mixture(share=0.5, sizes=(40, 40), retire_at=0.9):
    parts = {name: Curriculum(pool(name, n), 0, retire_at) for name, n in zip("ab", sizes, strict=True)}
    return Mixture(parts, {"a": 1.0 - share, "b": share})


def tasks(visits):
    return "".join(visit.prompt.task for visit in visits)


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=5),
    st.sampled_from([1, 0.1, 0.7, 1 / 3, 1e-8, 1e6]),
    st.integers(1, 3),
)
def test_any_window_has_exactly_the_shares_if_these_are_whole_prompts(weights, unit, periods):
    """Also for shares such as 0.7 and 0.3, whose products are rounded: their ties must be broken in one way."""
    names = "abcde"[: len(weights)]
    parts = {name: Curriculum(pool(name, 9), 0, None) for name in names}
    drawn = tasks(Mixture(parts, {name: weight * unit for name, weight in zip(names, weights, strict=True)}).draw(400))
    window = periods * sum(weights)
    for start in range(len(drawn) - window + 1):
        part = drawn[start : start + window]
        assert [part.count(name) for name in names] == [periods * weight for weight in weights]


@given(st.floats(0.01, 0.99), st.integers(1, 200))
def test_draws_never_deviate_from_the_shares_by_more_than_half_a_prompt(share, n):
    drawn = tasks(mixture(share).draw(n))
    assert abs(drawn.count("b") - share * n) <= 0.5 + 1e-9


def test_a_restored_mixture_draws_the_same_prompts(tmp_path):
    mixed, copy = mixture(0.3), mixture(0.3)
    for visit in mixed.draw(37)[:20]:
        mixed.record(visit, 1.0 if visit.prompt.text.endswith("7") else 0.5)
    save_state(tmp_path, "trainer", mixed.state())
    copy.load_state(load_state(tmp_path, "trainer"))
    assert copy.draw(60) == mixed.draw(60)
    assert copy.epoch == mixed.epoch and copy.num_retired == mixed.num_retired > 0


def test_the_other_tasks_take_over_the_share_of_a_retired_task():
    mixed = mixture(0.5, sizes=(2, 3))
    first = mixed.draw(4)
    for visit in first:
        mixed.record(visit, 1.0 if visit.prompt.task == "a" else 0.5)
    later = mixed.draw(5)
    assert tasks(first).count("a") == 2 and tasks(later) == "bbbbb"
    for visit in later:
        mixed.record(visit, 1.0)
    assert mixed.num_retired == 5 and mixed.draw(4) == []


def lab(*tasks):
    return replace(PRESETS["lab"], data=tasks)


def test_a_mixture_has_a_pool_and_a_held_out_set_of_every_task():
    config = lab(ArithmeticTask(prompts=100), ProgramsTask(prompts=50))
    split = load_prompts(config, make_tokenizer())
    names = [prompt.task for prompt in split.held_out]
    assert names.count("arithmetic") == names.count("programs") == config.evaluation.prompts
    assert abs(names[:512].count("programs") - 256) < 60  # five standard errors: both processes evaluate both tasks
    training = [prompt.task for prompt in split.training]
    assert (training.count("arithmetic"), training.count("programs")) == (100, 50)
    assert not {p.id for p in split.training} & {p.id for p in split.held_out}
    assert {tasks(make_curriculum(config.data, split.training, 0, 0.9).draw(16)).count("programs")} == {8}
    alone = load_prompts(lab(config.data[1]), make_tokenizer())
    for part in ("held_out", "training"):
        assert getattr(alone, part) == tuple(p for p in getattr(split, part) if p.task == "programs")


def test_one_task_has_the_plain_curriculum():
    for data in (ArithmeticTask(prompts=100), ProgramsTask(prompts=100)):
        config = lab(data)
        training = load_prompts(config, make_tokenizer()).training
        assert isinstance(make_curriculum(config.data, training, 0, 0.9), Curriculum)


def test_every_task_needs_the_prompts_of_its_share():
    load_prompts(lab(ArithmeticTask(share=3.0), ProgramsTask(prompts=4)), make_tokenizer())
    few, many = ProgramsTask(prompts=4), ProgramsTask(prompts=6000)
    for programs, message in ((few, "got 4; allowed: at least the 8"), (many, "5,600 dist")):
        with pytest.raises(ConfigError, match=message):
            load_prompts(lab(ArithmeticTask(), programs), make_tokenizer())
