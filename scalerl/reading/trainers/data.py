"""Reads what is known of a trainer, and of the components of ScaleRL, from the TOML files of this folder.

A trainer's file, here with one setting of each kind and two components:

    title = "TRL"
    package = "trl"        # whose installed version is compared with `checked`
    checked = "1.16.0"     # version of the source in which every name was found
    form = "yaml"          # form of its configuration: yaml, toml, or shell (an array of arguments in a script)
    start = "trl grpo --config scalerl.yaml"    # trains with the printed file
    notes = []             # optional sentences for the head of the printed file
    preamble = []          # optional first lines of the printed file: what it is based on
    required = ["epsilon"] # beginnings of names, of which a file of this trainer has one

    [settings] # nested as in the configuration, in the order of the printed file; `default` is the trainer's
    loss_type = { value = "cispo", default = "dapo", why = "eq. 4" }    # `value` comes nearest to ScaleRL
    epsilon_high = { value = 5.0, why = "CISPO's cap on the ratio" }
    epsilon = { default = 0.2 }                                         # is not printed, but read

    [lacks] # components of ScaleRL without a setting, with what happens instead
    resampling = "drawn again"

    [quantities] # optional: those that several cases use
    low = "epsilon"
    high = "epsilon_high or epsilon"

    [components] # what a configuration has of each component: the first case whose conditions all hold
    loss = [
      { if = { loss_type = "cispo" }, is = "cispo", cap = "high" },
      { if = { loss_type = "sapo" }, words = "SAPO" },
      { is = "clip" },
    ]
    resampling = [{ is = "off" }]

In a case, `is` is one of the component's kinds in `paper.toml`, and `words` and `same` replace those of the kind. Other
keys are quantities for the conditions and the words. `check.py` has what a condition and a quantity may be. The end of
a setting's name is enough where one setting has it: "optim.lr" for "trainer.optim.lr". A word is looked up in the case,
in the trainer's quantities, and in its settings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, NamedTuple

ConditionalSetting = Mapping[str, Any]
"""A table with the conditions under which it applies, and what it says then."""


class TrainerSetting(NamedTuple):
    """A setting of a trainer.

    Example: Setting("loss_type", value="cispo", default="dapo", why="eq. 4")
    """

    name: str
    """Name in the trainer's configuration; the levels of a nested one are joined with dots."""
    value: Any = None
    """Value that comes nearest to ScaleRL; None if the setting is only read."""
    default: Any = None
    why: str = ""
    """Why this value; one line."""


@dataclass(frozen=True)
class Trainer:
    """A trainer, as far as the recipe needs it. The module's first lines describe the fields.

    Example: Trainer(name="trl", title="TRL", package="trl", checked="1.16.0", form="yaml", ...)
    """

    name: str
    """Name of its file, which `scalerl recipes --for` takes."""
    title: str
    package: str
    checked: str
    form: str
    start: str
    required: tuple[str, ...]
    settings: Mapping[str, TrainerSetting]
    lacks: Mapping[str, str]
    components: Mapping[str, list[ConditionalSetting]]
    quantities: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    preamble: Sequence[str] = ()

    def setting(self, end: str) -> TrainerSetting:
        """Return the setting with a name, or the only one whose name ends with it.

        Raises:
            KeyError: There is none, or there are several: the trainer's file is wrong.
        """
        if end in self.settings:
            return self.settings[end]
        found = [setting for name, setting in self.settings.items() if name.endswith(f".{end}")]
        if len(found) != 1:
            raise KeyError(f"{self.name}.toml: got {end!r}, the end of {len(found)} names; allowed: of one")
        return found[0]

    @property
    def nearest(self) -> list[TrainerSetting]:
        """Settings that come nearest to ScaleRL, in the order of the printed file."""
        return [setting for setting in self.settings.values() if setting.value is not None]


class Component(NamedTuple):
    """A component or a size of the recipe.

    Example: Component("kl", "KL penalty", "none", {"none": {"words": "none", "same": True}})
    """

    key: str
    title: str
    ours: str
    """ScaleRL's choice."""
    kinds: Mapping[str, ConditionalSetting]
    """What a trainer may have instead, and what the paper measured for it."""


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("scalerl.reading.trainers") / f"{name}.toml").read_text("utf-8"))


def _settings(table: Mapping[str, Any], prefix: str = "") -> Iterator[TrainerSetting]:
    """Yield the settings of a table, whose entries are settings or tables of them."""
    for key, entry in table.items():
        if any(isinstance(value, dict) for value in entry.values()):
            yield from _settings(entry, f"{prefix}{key}.")
        else:
            yield TrainerSetting(prefix + key, **entry)


def trainer(name: str, table: Mapping[str, Any]) -> Trainer:
    """Return the trainer of a file that was read as a table."""
    settings = {setting.name: setting for setting in _settings(table["settings"])}
    return Trainer(**{**table, "name": name, "required": tuple(table["required"]), "settings": settings})


COMPONENTS = tuple(Component(key, **table) for key, table in _read("paper").items())
"""In the order of the table."""

NAMES = ("trl", "verl", "prime-rl", "skyrl", "open-instruct", "nemo-rl", "slime")

TRAINERS = {name: trainer(name, _read(name)) for name in NAMES}
"""Trainers by the name that `scalerl recipes --for` takes."""
