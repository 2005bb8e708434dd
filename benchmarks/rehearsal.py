"""Compares the estimated memory of trainer ranks with rehearsals (`scalerl plan --rehearse`), for docs/benchmarks.md.

    python benchmarks/rehearsal.py [examples/gpus/*.toml] [--out rehearsal.json]

Prints both peaks and their ratio in GB, and the parts of the rehearsal, of each configuration by its model, trainer
ranks and tokens. One takes one to four minutes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scalerl.core.errors import ConfigError
from scalerl.training.config import read_config
from scalerl.training.machines.layout import lay_out, planned
from scalerl.training.machines.rehearsal import rehearse
from scalerl.training.placement.sizes import RunSizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", default=sorted(Path("examples/gpus").glob("*.toml")))
    parser.add_argument("--out", type=Path, default=Path("rehearsal.json"))
    options = parser.parse_args()
    rows = []
    for file in options.files:
        config = planned(read_config(file, []))
        run = RunSizes.of(config)
        layout = lay_out(run)
        name = f"{run.model.source}, {config.placement.trainer_ranks} ranks, {run.widest:,} tokens"
        try:
            result = rehearse(config, run)
        except ConfigError as error:  # a mixture of which only the sizes are known
            print(f"| {name} | {layout.trainer.total / 1e9:.1f} | {error} |", flush=True)
            continue
        estimate, ratio = layout.trainer.total, layout.trainer.total / result.total
        rows.append({"block": name, "estimate": layout.trainer._asdict(), "ratio": ratio, **result._asdict()})
        parts = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in result.parts.items())
        print(f"| {name} | {estimate / 1e9:.1f} | {result.total / 1e9:.1f} | {ratio:.2f} | {parts} |", flush=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
