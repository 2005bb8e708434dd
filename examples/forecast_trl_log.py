"""Forecast a TRL run from its log: import trainer_state.json, fit the curve, forecast at more compute.

python examples/forecast_trl_log.py [DIRECTORY_OR_FILE]     # default: trl_log/, written by make_trl_log.py
scalerl import examples/trl_log --devices 8 -o points.jsonl && scalerl forecast points.jsonl --at 2x 4x
"""

import sys
from pathlib import Path

import scalerl
from scalerl.reading.logs import read

if __name__ == "__main__":
    log = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "trl_log"
    print(*read(log, devices=8).lines(), sep="\n")
    fitted = scalerl.fit(log, devices=8)
    print(fitted)
    print(scalerl.forecast(fitted, at=["2x", "4x"]))
    print(scalerl.advise(fitted))
