"""`scalerl upgrade`: writes run.json and study.json of runs and studies that another version of this package made."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scalerl.cli.terminal import say
from scalerl.core.errors import ConfigError


def add_upgrade_parser(commands: Any) -> None:
    """Add the parser of `scalerl upgrade`."""
    words = "write run.json and study.json for directories of another version, so that this one can read them"
    parser = commands.add_parser("upgrade", help=words, description=words[0].upper() + words[1:] + ".")
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIR", help="directory of a run or of a study")
    parser.set_defaults(run=upgrade)


def upgrade(arguments: argparse.Namespace) -> int:
    """Write run.json from config.toml, and study.json from study.toml; return the exit code.

    Raises:
        ConfigError: A directory has no configuration or plan that this version reads.
    """
    from scalerl.core.run_files import PLAN

    for path in arguments.paths:
        if (path / PLAN).is_file():
            _upgrade_study(path)
        else:
            _upgrade_run(path)
    return 0


def _upgrade_run(path: Path) -> None:
    from scalerl.core.files import write_whole
    from scalerl.core.run_files import RUN
    from scalerl.training.run_dir import saved_config
    from scalerl.training.run_info import run_info

    text = run_info(saved_config(path)).to_json()
    write_whole(path / RUN, text)
    say(f"{path / RUN} written")


def _upgrade_study(path: Path) -> None:
    """Write study.json, and run.json of the runs that have none."""
    from scalerl.core.run_files import CONFIG, STUDY, read_run
    from scalerl.study.directory import StudyDirectory

    study = StudyDirectory.open(path)
    study.save_info()
    say(f"{path / STUDY} written")
    for run in filter(lambda run: (run / CONFIG).is_file(), map(study.run, study.info.runs())):
        try:
            read_run(run)
        except ConfigError:
            _upgrade_run(run)
