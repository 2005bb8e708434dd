"""The output for a good, an unidentified, a collapsed and an at-bound fit, compared with files.

Words must be equal; numbers may differ as between platforms. `python tests/scaling/test_golden.py` rewrites the files
after an intended change; read the difference before committing it.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from simulated_runs import run

from scalerl.reading.curves import Curve, advise, fit, forecast

GOLDEN = Path(__file__).parent / "golden"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def collapsed():
    curve = run()
    metric = curve.metric.copy()
    metric[-8:] = np.linspace(0.55, 0.2, 8)
    return Curve(curve.compute, metric, axis=curve.axis, label="collapsed")


def at_bound():
    curve = run(asymptote=1.0, efficiency=1.5, initial=0.3, noise=0.005, seed=3)
    return Curve(curve.compute, curve.metric, axis=curve.axis, label="at bound")


CURVES = {"good": run, "unidentified": lambda: run(last=1800.0), "collapsed": collapsed, "at_bound": at_bound}


def report(curve):
    fitted = fit(curve)
    return "\n".join([str(fitted), str(forecast(fitted, at=["2x", "4x"])), str(advise(fitted))]) + "\n"


def document(curve):
    fitted = fit(curve)
    return json.loads(json.dumps({"fit": fitted.to_dict(), "advice": advise(fitted).to_dict()}))


def alike(actual, golden):
    """Return whether two texts are equal except for the last digits of numbers."""
    if isinstance(golden, dict):
        return actual.keys() == golden.keys() and all(alike(actual[key], golden[key]) for key in golden)
    if isinstance(golden, list):
        return len(actual) == len(golden) and all(map(alike, actual, golden))
    if isinstance(golden, float):
        return actual == pytest.approx(golden, rel=0.03, abs=2e-3)
    if isinstance(golden, str):
        same_words = NUMBER.sub("#", actual) == NUMBER.sub("#", golden)
        return same_words and all(map(alike, map(float, NUMBER.findall(actual)), map(float, NUMBER.findall(golden))))
    return actual == golden


@pytest.mark.parametrize("name", CURVES)
def test_the_text_is_that_of_the_golden_file(name):
    text, golden = report(CURVES[name]()), (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert alike(text, golden), f"{name}.txt should read:\n{text}"


@pytest.mark.parametrize("name", CURVES)
def test_the_document_is_that_of_the_golden_file(name):
    assert alike(document(CURVES[name]()), json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for title, make in CURVES.items():
        (GOLDEN / f"{title}.txt").write_text(report(make()), encoding="utf-8")
        (GOLDEN / f"{title}.json").write_text(json.dumps(document(make()), indent=1) + "\n", encoding="utf-8")
