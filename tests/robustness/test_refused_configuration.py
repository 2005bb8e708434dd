"""Invalid configurations: each is refused by the rule of campaign.py when it is read."""

import pytest

from robustness import fields
from scalerl.config.overrides import read_config
from scalerl.core.errors import ConfigError

WRONG_FIELDS = list(fields.wrong_fields())


@pytest.mark.parametrize(("name", "values"), WRONG_FIELDS, ids=[name for name, _ in WRONG_FIELDS])
def test_a_value_of_a_wrong_type_is_refused_with_the_name_of_its_field(name, values):
    with pytest.raises(ConfigError) as refusal:
        read_config(None, values)
    output = str(refusal.value)
    assert name.split("[")[0].split(" =")[0].rpartition(".")[2] in output and len(output) < 1000, output
