"""Text on a terminal or in a log."""

from __future__ import annotations

from rich.console import Console

from scalerl.core.printable import indented


def tell(console: Console, text: str) -> None:
    """Print a message, safe for a terminal; in a log it is not wrapped, so that it can be searched."""
    console.print(indented(text), highlight=False, markup=False, soft_wrap=not console.is_terminal)
