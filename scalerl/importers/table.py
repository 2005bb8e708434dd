"""Plain CSV and JSONL with named columns: each row is an evaluation with the compute used up to it."""

from __future__ import annotations

from scalerl.importers.dialect import GENERIC_EVALUATIONS, Dialect

AXES = ("device_hours", "flops", "tokens", "compute")
"""Columns with the compute used so far; their values are not converted."""

DIALECT = Dialect(
    name="table",
    marks=(),
    steps=("step", "global_step", "Step", "_step"),
    evaluations=GENERIC_EVALUATIONS,
    about="the columns of the table",
    tokens=("num_tokens", "total_tokens"),
)
