"""Times the check of a checkpoint's digests at the start of a resume.

    python benchmarks/digests.py --parameters 135e6 --repeats 5

Makes a checkpoint of the size of a model (FP32 weights and two moments: 12 bytes per parameter) and times, in new
processes, the imports of a resume followed by the check: without the check, with the check after the imports, and with
digests that threads compute during the imports (`digest_ahead`). Prints the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scalerl.training.manifest import seal

CODE = """
import sys, time
from pathlib import Path
from scalerl.training import manifest
run, how = Path(sys.argv[1]), sys.argv[2]
began = time.perf_counter()
if how == "ahead":
    manifest.digest_ahead(run)
import scalerl.view.display, scalerl.training.complete, scalerl.training.launch
imported = time.perf_counter()
if how != "none":
    manifest.check_files(run / "checkpoints/step_000010")
print(imported - began, time.perf_counter() - imported)
"""


def main() -> None:
    """Make the checkpoint, time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=135e6)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scalerl-digests-") as place:
        checkpoint = Path(place) / "checkpoints/step_000010"
        checkpoint.mkdir(parents=True)
        (checkpoint / "trainer.json").write_text("{}")
        with (checkpoint / "learner.safetensors").open("wb") as file:
            block, left = os.urandom(1 << 24), int(12 * given.parameters)
            while left > 0:
                left -= file.write(block[:left])
        seal(checkpoint, 10)
        times: dict[str, list[tuple[float, float]]] = {"none": [], "after": [], "ahead": []}
        for _ in range(given.repeats):
            for how, found in times.items():
                done = subprocess.run(
                    [sys.executable, "-c", CODE, place, how], capture_output=True, text=True, check=True
                )
                imports_s, check_s = map(float, done.stdout.split())
                found.append((imports_s, check_s))
                print(f"{how:<6} imports {imports_s:.2f} s, check {check_s:.2f} s", flush=True)
        for how, found in times.items():
            total_s = statistics.median(sum(pair) for pair in found)
            print(f"{how:<6} {total_s:.2f} s, of which the check {statistics.median(c for _, c in found):.3f} s")


if __name__ == "__main__":
    main()
