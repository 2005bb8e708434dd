"""Shows a run in a notebook while it trains: a table rewritten in place, and the curve after each evaluation."""

from __future__ import annotations

import html
import io
import sys
import time
from typing import Any

from rich.console import Console

from scalerl.config import RunConfig
from scalerl.view.display import RunDisplay
from scalerl.view.figures import picture

EVERY_S = 0.5
"""Shortest interval between two updates of the table, seconds."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class NotebookDisplay(RunDisplay):
    """Displays a run in a notebook."""

    def __init__(self, config: RunConfig, axis: str) -> None:
        """Prepare for a run; see RunDisplay."""
        super().__init__(config, axis, Console(file=sys.stdout, force_terminal=False, force_jupyter=False, width=100))
        from IPython.display import HTML, display

        self._html = HTML
        self._table = display(HTML(""), display_id=True)
        self._picture = display(HTML(""), display_id=True)
        self._drawn_at = 0.0

    def _show_step(self, row: dict[str, Any]) -> None:
        if time.monotonic() - self._drawn_at >= EVERY_S or row["step"] == self._steps:
            self._draw()

    def _show_points(self) -> None:
        self._draw()
        if self._outlooks:
            fits = [ahead.fit for ahead in self._outlooks.values()]
            self._picture.update(self._html(picture(fits, form="svg").decode()))

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        # rich would add a new output to the notebook for every drawing, so it prints to a string
        text = Console(file=io.StringIO(), width=110, record=True, force_jupyter=False)
        text.print(self._render())
        self._table.update(self._html(f"<pre>{html.escape(text.export_text())}</pre>"))
