"""Values of wrong types: a field of any type accepts a value or refuses it with its name, and never fails otherwise."""

import datetime

import pytest

from scalerl.core.errors import ConfigError
from scalerl.training.config import RunConfig
from scalerl.training.config.base import records
from scalerl.training.config.overrides import read_config

DATE, NAN, INFINITY, TABLE = datetime.date(2026, 1, 2), float("nan"), float("inf"), {"no_such_key": 1}
ODD = (True, 7, 1.5, NAN, INFINITY, 10**30, "many", "half\ud800", "nul\0", [[1]], TABLE)
REFUSED = [
    ("steps", (True, "many", 1.5, NAN, INFINITY, DATE, [[1]], TABLE, 10**30)),
    ("recipe.optimizer.learning_rate", (True, "much", NAN, INFINITY, DATE, [[1.0]], TABLE)),
    ("recipe.name", (7, True, DATE, ["x", 3], "half\ud800", "nul\0")),
    ("recipe.fp32_head", ("perhaps", 7, DATE, [True], TABLE)),
    ("recipe.aggregation", ("no such choice", 7, DATE, ["x"])),
    ("recipe.optimizer", (7, DATE, [1])),
]


def fields(cls=RunConfig, path="", kinds=None):
    """Yield (type, path, kinds that the parent tables need) of every field of a record, as options."""
    for name, field in cls.model_fields.items():
        yield str(field.annotation), f"{path}{name}", kinds or {}
        members = records(field.annotation)
        for member in members:
            chosen = {} if len(members) == 1 else {f"{path}{name}.kind": member.model_fields["kind"].default}
            yield from fields(member, f"{path}{name}.", {**(kinds or {}), **chosen})


def one_of_each_type():
    """Return (path, kinds) of the first field of every type."""
    found = {}
    for kind, path, kinds in fields():
        if not path.endswith("kind"):
            found.setdefault(kind, (path, kinds))
    return list(found.values())


def refusal(path, value, kinds):
    """Return the message that refuses a value, or "" if it is accepted."""
    try:
        read_config(None, {**kinds, path: value})
    except ConfigError as error:
        assert len(str(error)) < 1000, str(error)
        return str(error)
    return ""


@pytest.mark.parametrize(("path", "kinds"), one_of_each_type(), ids=str)
def test_a_date_is_refused_with_the_name_of_its_field_and_no_value_leads_to_another_error(path, kinds):
    if path != "data.template_date":
        assert path.rpartition(".")[2] in refusal(path, DATE, kinds)
    for value in ODD:  # accepted, or refused because another field is missing
        refusal(path, value, kinds)


@pytest.mark.parametrize(("path", "values"), REFUSED, ids=[path for path, _ in REFUSED])
def test_a_value_of_a_wrong_type_is_refused(path, values):
    assert all(path.rpartition(".")[2] in refusal(path, value, {}) for value in values)
