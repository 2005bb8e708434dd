"""`scalerl watch`: serves a live page about runs, studies and logs; and the parts of it that `follow --page` uses."""

from __future__ import annotations

import argparse
import secrets
import socket
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scalerl.cli.options import Parser, add_directories, add_reading_options, reading_of
from scalerl.core.errors import ConfigError
from scalerl.core.packages import check_installed
from scalerl.core.working import Working
from scalerl.reading.curves import CurveError
from scalerl.reading.pages.following import FollowedLog
from scalerl.reading.pages.frozen import plotly_script
from scalerl.reading.pages.state import check_there, has_runs
from scalerl.reading.tables.forms import find_log, wandb_path

if TYPE_CHECKING:
    import uvicorn

    from scalerl.reading.pages.watcher import Watcher

PORT = 8470
"""Default port; not one of Ray's (8265), TensorBoard's (6006) or vLLM's (8000)."""


def watch_parser() -> Parser:
    """Return the parser of `scalerl watch`."""
    words = "Serve a page that follows runs, studies and logs of any trainer while they train; it only reads."
    parser = Parser(prog="scalerl watch", description=words)
    add_directories(parser, "or logs (docs/importing.md)")
    add_address(parser)
    add_reading_options(parser)
    return parser


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add the options of the server: port, host, and whether to open the page."""
    parser.add_argument("--port", type=int, default=PORT, help=f"port of the page; default {PORT}; 0: a free port")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")


def run_watch(words: list[str]) -> int:
    """Serve the page until Ctrl-C; return the exit code.

    Raises:
        ConfigError: A package is missing, a path does not exist, or the port cannot be used.
    """
    arguments = watch_parser().parse_args(words)
    check_page()
    from scalerl.reading.pages.watcher import Watcher

    logs = [path for path in arguments.paths if is_log(path)]
    directories = [path for path in arguments.paths if path not in logs]
    check_there(directories)  # given paths must exist; the default ones may be created later
    if not arguments.paths:
        directories = [Path("runs"), Path("studies")]
    reading = reading_of(arguments)
    place = listen(arguments.host, arguments.port)
    with Working("looking for runs"):
        watcher = Watcher(directories, [FollowedLog(path, reading) for path in logs])
    counts = [f"{len(watcher.runs)} runs, {len(watcher.studies)} studies in {', '.join(map(str, directories))}"]
    counts = [*(counts if directories else []), *([f"{len(logs)} logs"] if logs else [])]
    if watcher.limit:
        print(watcher.limit)
    added = "; new ones are added while it runs" if directories else ""
    print(f"{', '.join(counts)}{added}\nwatch at  {place.link}\nstop with Ctrl-C", flush=True)
    server = serving(watcher, place, open_browser=arguments.open)
    try:
        server.run(sockets=[place.listening])
    except KeyboardInterrupt:
        return 130
    return 0


def is_log(path: Path) -> bool:
    """Return whether a path is the log of another trainer: a file, a run on wandb, or a directory with a log only."""
    if wandb_path(str(path)) is not None or path.is_file():
        return True
    if not path.is_dir() or has_runs(path):
        return False
    try:
        return bool(find_log(path))
    except CurveError:
        return False


# ----------------------------------------------------------------------------------------------------------- the server


class ServedAt(NamedTuple):
    """Where a page is served.

    Example: `ServedAt(listening=..., host="127.0.0.1", address="http://127.0.0.1:8470/", token="kT3...")`
    """

    listening: socket.socket
    host: str
    """Host given by the user."""
    address: str
    token: str
    """Required for every request."""

    @property
    def link(self) -> str:
        """The address with the token."""
        return f"{self.address}?token={self.token}"


def check_page() -> None:
    """Check that the packages of the page are installed.

    Raises:
        ConfigError: One is not. Without plotly, figures would be empty.
    """
    check_installed(["starlette", "uvicorn"])
    plotly_script()


def listen(host: str, port: int) -> ServedAt:
    """Open the port of a page, with a new token.

    Raises:
        ConfigError: The port cannot be used.
    """
    listening = _listen(host, port)
    return ServedAt(listening, host, _address(host, listening.getsockname()[1]), secrets.token_urlsafe(24))


def serving(watcher: Watcher, place: ServedAt, *, open_browser: bool) -> uvicorn.Server:
    """Return the server of a page, not started yet; open the page in the browser if asked for."""
    from scalerl.reading.pages.server import server_of

    invitation = ""
    if open_browser:
        # every user can read the command line of the browser, so it does not get the token itself
        invitation = secrets.token_urlsafe(24)
        webbrowser.open(f"{place.address}?token={invitation}")
    return server_of(watcher, place.listening, place.host, place.token, invitation)


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port < 1 << 16:
            raise OSError("a port is a number from 0 to 65535")
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: {error}; give another port (0: a free port), or an address of this machine"
        ) from error


def _address(host: str, port: int) -> str:
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname(), "": socket.gethostname()}.get(host, host)
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/"
