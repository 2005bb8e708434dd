"""`scalerl upgrade`: describes runs and studies of another version, so that the commands that read them can."""

from __future__ import annotations

from pathlib import Path

from scalerl.cli.options import Parser
from scalerl.cli.terminal import print_lines
from scalerl.core.errors import ConfigError
from scalerl.core.files import write_whole
from scalerl.core.run_files import CONFIG, PLAN, RUN, STUDY, read_run
from scalerl.training.loop.run_dir import saved_config
from scalerl.training.loop.run_info import run_info
from scalerl.training.study.directory import StudyDirectory


def run_upgrade(words: list[str]) -> int:
    """Write run.json from config.toml, and study.json from study.toml; return the exit code.

    Raises:
        ConfigError: A directory has no configuration or plan that this version reads.
    """
    about = "Write run.json and study.json for directories of another version, so that this one can read them."
    parser = Parser(prog="scalerl upgrade", description=about)
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIR", help="directory of a run or of a study")
    for path in parser.parse_args(words).paths:
        if (path / PLAN).is_file():
            _upgrade_study(path)
        else:
            _upgrade_run(path)
    return 0


def _upgrade_run(path: Path) -> None:
    text = run_info(saved_config(path)).to_json()
    write_whole(path / RUN, text)
    print_lines(f"{path / RUN} written")


def _upgrade_study(path: Path) -> None:
    """Write study.json, and run.json of the runs that have none."""
    study = StudyDirectory.open(path)
    study.save_info()
    print_lines(f"{path / STUDY} written")
    for run in filter(lambda run: (run / CONFIG).is_file(), map(study.run, study.info.runs())):
        try:
            read_run(run)
        except ConfigError:
            _upgrade_run(run)
