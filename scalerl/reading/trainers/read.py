"""Reads a configuration of another trainer as settings by dotted names: JSON, YAML, TOML, or a shell script."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scalerl.core.errors import ConfigError
from scalerl.core.files import parse_json, read_bytes, trouble

UNRESOLVED = "\0"
"""Value of a setting that a script computes, such as `$((a * b))`."""

EXPORT_COMMAND = (
    """python -c "import torch; print(torch.load('training_args.bin', weights_only=False).to_json_string())" """
)
"""Command that writes TRL's arguments as JSON."""

PICKLES = (b"PK\x03\x04", b"\x80")
"""First bytes of torch's files and of pickles, which run code when they are read."""

LARGEST_CONFIG_BYTES = 1 << 18
"""Bytes of the largest configuration, some ten times the largest that a trainer prints. YAML takes 20 s per MB."""
MOST_VALUES = 100_000
"""Most values of a configuration, each counted as often as an alias of YAML repeats it, a long text several times."""
COUNTED = 100
"""Characters of a text that count as one more value."""
MOST_BITS = 1023
"""Bits of the largest whole number. Python reads more of them in hexadecimal, and cannot print them."""
LONGEST = 10_000
"""Characters of the longest name, number, or value of a variable in a script."""


def read_settings(path: Path) -> dict[str, Any]:
    """Read the settings of a file; the levels of a nested file are joined with dots.

    A setting that a script computes has the value `UNRESOLVED`.

    Raises:
        ConfigError: The file cannot be read, has none of the forms, or has no settings.
    """
    try:
        content = read_bytes(path, LARGEST_CONFIG_BYTES)
    except OSError as error:
        raise ConfigError(trouble(error)) from None
    if content.startswith(PICKLES):
        raise ConfigError(
            f"{path}: got a pickle of torch, which can run code when it is read; export the arguments as JSON where "
            f"you trust the file, and check that: {EXPORT_COMMAND.strip()} > training_args.json"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: got a file that is not UTF-8 text; allowed: JSON, YAML, TOML or a script") from None
    settings = _parse(path, text)
    if not settings:
        raise ConfigError(f"{path}: got a file without settings; give the configuration that the trainer starts with")
    return settings


def _parse(path: Path, text: str) -> dict[str, Any]:
    suffix = path.suffix.lower()
    if suffix in YAML and find_spec("yaml") is None:
        raise ConfigError(f"{path}: reading YAML needs the package PyYAML: pip install pyyaml")
    if suffix in (".sh", ".bash", ".slurm", ".sbatch", ".txt") or text.startswith("#!"):
        return dict(_arguments(text))
    try:
        if suffix == ".toml":
            return dict(_leaves(tomllib.loads(text)))
        if suffix in (".json", ".jsonl") or text.lstrip().startswith("{"):
            return dict(_leaves(parse_json(text)))
        if suffix in YAML:
            return dict(_leaves(_yaml(text)))
    except (ValueError, RecursionError) as error:
        at = " ".join(str(error).split())
        raise ConfigError(f"{path}: cannot be read as {suffix[1:] or 'json'} ({at[:200]})") from None
    raise ConfigError(
        f"{path}: got the ending {suffix!r}; allowed: .json, .yaml, .toml, or a script (.sh) with the arguments"
    )


YAML = (".yaml", ".yml")


def _yaml(text: str) -> Any:
    import yaml  # type: ignore[import-untyped]

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        _count(node, {})
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    finally:
        loader.dispose()


def _count(node: Any, counted: dict[int, int]) -> int:
    """Return how many values a node of YAML has once its aliases are replaced.

    Raises:
        ValueError: They are more than `MOST_VALUES`, an alias contains itself, or a name or number is too long.
    """
    if node is None or isinstance(node.value, str):
        if node is not None and len(node.value) > LONGEST and node.tag != "tag:yaml.org,2002:str":
            raise ValueError(f"got a number or date of {len(node.value):,} characters; allowed: at most {LONGEST:,}")
        return 1 if node is None else 1 + len(node.value) // COUNTED
    if id(node) not in counted:
        counted[id(node)] = MOST_VALUES  # for an alias within it
        inner = (part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,)))
        counted[id(node)] = 1 + sum(_count(part, counted) for part in inner)
    if counted[id(node)] > MOST_VALUES:
        raise ValueError(f"with its aliases it has more than {MOST_VALUES:,} values, or one that contains itself")
    return counted[id(node)]


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values. Names that are written with dots are joined as they are.

    A list of tables is a value, and the settings in it are values too: that of all tables, or text such as "8 and 16".
    """
    if len(prefix) > LONGEST:
        raise ValueError(f"got a name of {len(prefix):,} characters; allowed: at most {LONGEST:,}")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError(f"got a whole number of {value.bit_length():,} bits; allowed: at most {MOST_BITS:,}")
    elif prefix:
        yield prefix, value
        found: dict[str, list[Any]] = {}
        for one in value if isinstance(value, list) else []:
            for name, inner in _leaves(one, prefix):
                if name != prefix and not isinstance(inner, list):
                    found.setdefault(name, []).append(inner)
        for name, values in found.items():
            texts = sorted({str(one) for one in values}, key=lambda text: (len(text), text))
            yield name, values[0] if len(texts) == 1 else " and ".join(texts)


ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(.*)", re.DOTALL)
"""An override of Hydra or OmegaConf, such as `trainer.algorithm.eps_clip_low=0.2`."""
VARIABLE = re.compile(r"\$\{?(\w+)(?::-([^}]*))?\}?")


def _arguments(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a script: `--name value`, `--name=value`, flags, and overrides with dots.

    Plain variables are replaced. The script is not run, so arguments with other expansions are `UNRESOLVED`.
    """
    variables = dict[str, str]()
    option = ""
    for word in _words(text):
        if option:
            yield option, _value(word, variables) if word and not word.startswith("--") else True
            is_value, option = word and not word.startswith("--"), ""
            if is_value:
                continue
        override, assignment = OVERRIDE.fullmatch(word), ASSIGNMENT.fullmatch(word)
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            if equals:
                yield name, _value(value, variables)
            else:
                option = name
        elif override:
            yield override[1], _value(override[2], variables)
        elif assignment:
            variables[assignment[1]] = _expanded(assignment[2], variables)
    if option:
        yield option, True


def _words(text: str) -> Iterator[str]:
    """Yield the words of a script without comments; a line with an open quote ends at its end."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.replace("=(", "= ("), posix=True, punctuation_chars="();")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            words = line.split()
        yield from (word for word in words if not set(word) <= set("();"))
        yield ""  # a flag at the end of a line has no value


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Return a text with its variables replaced, unless it grows beyond `LONGEST`: each may repeat another twice."""

    def replaced(match: re.Match[str]) -> str:
        return variables.get(match[1], match[2] if match[2] is not None else match[0])

    longer = sum(len(replaced(match)) for match in VARIABLE.finditer(text))
    return UNRESOLVED if longer > LONGEST else VARIABLE.sub(replaced, text)


def _value(text: str, variables: Mapping[str, str]) -> Any:
    text = _expanded(text, variables)
    if "$" in text or "`" in text or UNRESOLVED in text:
        return UNRESOLVED
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("none", "null"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
