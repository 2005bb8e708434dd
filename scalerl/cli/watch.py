"""`scalerl watch`: serves a live page about runs and studies."""

from __future__ import annotations

import secrets
import shlex
import socket
import webbrowser
from pathlib import Path

from scalerl.cli.options import Parser, add_directories
from scalerl.core.errors import ConfigError
from scalerl.core.packages import check_installed
from scalerl.importers.errors import LogError
from scalerl.view.frozen import plotly_script
from scalerl.view.state import find

PORT = 8470
"""Default port; not one of Ray's (8265), TensorBoard's (6006) or vLLM's (8000)."""


def watch_parser() -> Parser:
    """Return the parser of `scalerl watch`."""
    words = "Serve a page that follows runs and studies while they train; it only reads their directories."
    parser = Parser(prog="scalerl watch", description=words)
    add_directories(parser)
    parser.add_argument("--port", type=int, default=PORT, help=f"port; default {PORT}; 0: a free port")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    return parser


def run_watch(words: list[str]) -> int:
    """Serve the page until Ctrl-C; return the exit code.

    Raises:
        ConfigError: A package is missing, a path does not exist, or the port cannot be used.
    """
    arguments = watch_parser().parse_args(words)
    check_installed(["starlette", "uvicorn"])
    from scalerl.view.server import serve
    from scalerl.view.watcher import Watcher

    plotly_script()  # fails now if plotly is missing, instead of showing empty figures
    for path in arguments.paths:
        if path.is_file():
            raise LogError(
                f"{path} is a file, and a live page follows run directories; `scalerl report` writes one about a log",
                command=shlex.join(["scalerl", "report", str(path)]),
            )
    find(arguments.paths)  # given paths must exist; the default ones may be created later
    paths = arguments.paths or [Path("runs"), Path("studies")]
    listening = _listen(arguments.host, arguments.port)
    watcher = Watcher(paths)
    token, invitation = secrets.token_urlsafe(24), ""
    address = _address(arguments.host, listening.getsockname()[1])
    counts = f"{len(watcher.runs)} runs, {len(watcher.studies)} studies in {', '.join(map(str, paths))}"
    print(
        f"{counts}; new ones are added while it runs\nwatch at  {address}?token={token}\nstop with Ctrl-C", flush=True
    )
    if arguments.open:
        # every user can read the command line of the browser, so it does not get the token itself
        invitation = secrets.token_urlsafe(24)
        webbrowser.open(f"{address}?token={invitation}")
    try:
        serve(watcher, listening, arguments.host, token, invitation)
    except KeyboardInterrupt:
        return 130
    return 0


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
