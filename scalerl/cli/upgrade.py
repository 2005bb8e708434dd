"""`scalerl upgrade`: writes the run.json of runs that another version of this package made."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scalerl.cli.terminal import say


def add_upgrade_parser(commands: Any) -> None:
    """Add the parser of `scalerl upgrade`."""
    words = "write the run.json of runs that another version of scalerl made, so that this one can read them"
    parser = commands.add_parser("upgrade", help=words, description=words[0].upper() + words[1:] + ".")
    parser.add_argument("paths", nargs="+", type=Path, metavar="RUN", help="run directory with a config.toml")
    parser.set_defaults(run=upgrade)


def upgrade(arguments: argparse.Namespace) -> int:
    """Write run.json from config.toml; return the exit code.

    Raises:
        ConfigError: A directory has no configuration that this version reads.
    """
    from scalerl.core.files import write_whole
    from scalerl.core.run_files import RUN
    from scalerl.training.run_dir import saved_config
    from scalerl.training.run_info import run_info

    for path in arguments.paths:
        text = run_info(saved_config(path)).to_json()
        write_whole(path / RUN, text)
        say(f"{path / RUN} written")
    return 0
