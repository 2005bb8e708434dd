"""`scalerl upgrade`: writes the run.json of runs that another version of this package made."""

from __future__ import annotations

from pathlib import Path

from scalerl.cli.options import Parser
from scalerl.cli.terminal import say
from scalerl.core.files import write_whole
from scalerl.core.run_files import RUN
from scalerl.training.run_dir import saved_config
from scalerl.training.run_info import run_info


def run_upgrade(words: list[str]) -> int:
    """Write run.json from config.toml; return the exit code.

    Raises:
        ConfigError: A directory has no configuration that this version reads.
    """
    about = "Write the run.json of runs that another version of scalerl made, so that this one can read them."
    parser = Parser(prog="scalerl upgrade", description=about)
    parser.add_argument("paths", nargs="+", type=Path, metavar="RUN", help="run directory with a config.toml")
    for path in parser.parse_args(words).paths:
        text = run_info(saved_config(path)).to_json()
        write_whole(path / RUN, text)
        say(f"{path / RUN} written")
    return 0
