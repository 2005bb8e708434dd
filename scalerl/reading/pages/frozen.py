"""A page as one HTML file that needs no network: the HTML and JavaScript of `scalerl watch` with the page's JSON.

The figures are drawn by plotly.js from the `plotly` package, which includes the script. Unlike Bokeh it needs no
server, unlike Vega no compiler of 33 MB, and its SVG keeps text as text. It adds 5 MB to a page.
"""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from scalerl.core import VERSION
from scalerl.core.errors import ConfigError
from scalerl.core.files import write_whole
from scalerl.reading.curves import CurveError

ASSET = re.compile(r'<link rel="(\w+)" href="/assets/([\w.]+)">|<script defer src="/assets/([\w.]+)"></script>')
"""What index.html loads from the server."""

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def frozen(page: dict[str, Any], series: dict[str, Any] | None = None) -> str:
    """Return a page as one HTML document.

    Args:
        page: From `page.page`.
        series: Large figures of the page's metrics, by name.

    Raises:
        ConfigError: The `plotly` package is not installed.
    """
    frozen_values = {"page": page, "series": series or {}}
    values = json.dumps(frozen_values, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="generator" content="scalerl {VERSION}">\n'
        # inside a script element "<" could end it
        f'<script type="application/json" id="frozen">{values.replace("<", chr(92) + "u003c")}</script>\n'
    )
    text = ASSET.sub(_inlined, asset("index.html"))
    text = re.sub(r"<title>.*?</title>", lambda _: f"<title>{html.escape(page['title'])}</title>", text)
    text = text.replace("</title>\n", f"</title>\n{head}", 1)
    return text.replace("</body>", f"<script>{plotly_script()}</script>\n{_scripts()}</body>")


def _inlined(element: re.Match[str]) -> str:
    kind, linked, _ = element.groups()
    return f"<style>\n{asset(linked)}</style>" if kind == "stylesheet" else ""


def _scripts() -> str:
    """Return the scripts of index.html in their order; they stand behind the elements that they use."""
    names = [name for _, _, name in ASSET.findall(asset("index.html")) if name]
    return "".join(f"<script>\n{asset(name)}</script>\n" for name in names)


def asset(name: str) -> str:
    """Return the text of a file of the pages."""
    return (files("scalerl.reading.pages") / "assets" / name).read_text(encoding="utf-8")


def write_page(path: Path, page: dict[str, Any], series: dict[str, Any] | None = None) -> None:
    """Write a page to a file atomically; bytes of file names that are not UTF-8 are shown as escapes.

    Raises:
        ConfigError: The `plotly` package is not installed.
        CurveError: The path cannot be written.
    """
    text = frozen(page, series)
    try:
        write_whole(path, text.encode("utf-8", "backslashreplace").decode())
    except OSError as error:
        raise CurveError(
            f"the page cannot be written to {path}: {error.strerror}; give another path with -o"
        ) from error


def plotly_script() -> str:
    """Return plotly.js.

    Raises:
        ConfigError: The `plotly` package is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError("the page needs the plotly package: pip install 'scalerl[report]'") from error
    return str(get_plotlyjs())
