"""Rows as lines of JSON."""

import json


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_rows(path, rows):
    """Write rows to a file; return its path."""
    path.write_text(lines(rows), encoding="utf-8")
    return path
