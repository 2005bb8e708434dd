"""The state of loggers and notifications in the run directory: loggers.json."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from scalerl.core.files import read_json

NAME = "loggers.json"


class Record:
    """Ids of logged runs and the last logged steps, so that a resumed run continues them.

    Example of the file: {"wandb": {"id": "3f2a9c1b", "row": 120, "evaluation": 100}}
    """

    def __init__(self, directory: Path) -> None:
        """Read the file of a run directory; a missing or unreadable file counts as empty."""
        self._path = directory / NAME
        self._lock = threading.Lock()
        try:
            found = read_json(self._path)
        except (OSError, ValueError):
            found = {}
        entries = found if isinstance(found, dict) else {}
        self._entries: dict[str, dict[str, Any]] = {k: v for k, v in entries.items() if isinstance(v, dict)}

    def get(self, name: str, key: str, default: Any) -> Any:
        """Return a value of a logger if it has the type of the default, else the default."""
        value = self._entries.get(name, {}).get(key, default)
        return value if isinstance(value, type(default)) else default

    def put(self, name: str, **values: Any) -> None:
        """Store values of a logger. The file is replaced atomically, but not forced to disk, to save time at each step.

        Raises:
            OSError: The file cannot be written.
        """
        with self._lock:
            self._entries.setdefault(name, {}).update(values)
            temporary = self._path.with_name(f".{NAME}.tmp")
            temporary.write_text(json.dumps(self._entries) + "\n", encoding="utf-8")
            os.replace(temporary, self._path)
