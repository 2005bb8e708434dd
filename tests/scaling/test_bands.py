"""The bands of a forecast: the curve's level, one evaluation, and the mean of several."""

from dataclasses import replace

import numpy as np
import pytest
from commands import call
from simulated_runs import run, write

from scalerl.reading.curves import CurveError, fit, forecast
from scalerl.reading.curves.posterior import share_of_mean


def width(band):
    return float(band.high[0] - band.low[0])


def test_the_variance_of_a_mean_is_that_of_ar1_values():
    # independent: 1/n; for n = 2: (1 + phi) / 2; equal values: 1
    assert share_of_mean(np.array([0.0]), 5) == pytest.approx([0.2])
    assert share_of_mean(np.array([0.6]), 2) == pytest.approx([0.8])
    assert share_of_mean(np.array([0.3]), 1) == pytest.approx([1.0])
    phi, n, rng = 0.7, 4, np.random.default_rng(0)
    noise = rng.standard_normal((20_000, 60))
    for i in range(1, 60):
        noise[:, i] = phi * noise[:, i - 1] + np.sqrt(1 - phi**2) * noise[:, i]
    assert share_of_mean(np.array([phi]), n)[0] == pytest.approx(noise[:, -n:].mean(axis=1).var(), rel=0.03)


def test_the_mean_of_more_evaluations_has_a_narrower_band_that_stays_wider_than_the_level():
    fitted = fit(run(noise=0.03, seed=4))
    widths = [width(fitted.predict([32_000.0], noise=True, mean_of=n)) for n in (1, 3, 10)]
    level = width(fitted.predict([32_000.0]))
    assert widths[0] > 1.15 * widths[1] > 1.15 * widths[2] and widths[2] > 0.98 * level
    assert fitted.predict([32_000.0], noise=True, mean_of=1).low == fitted.predict([32_000.0], noise=True).low


def test_the_forecast_says_of_how_many_evaluations_the_band_is(capsys, tmp_path):
    fitted = fit(replace(run(noise=0.03, seed=4), prompts=256))
    assert "the mean of 5 evaluations of 256 prompts 0." in str(forecast(fitted, mean_of=5))
    assert "one evaluation of 256 prompts 0." in str(forecast(fitted))
    assert forecast(fitted, mean_of=5).to_dict()["mean_of"] == 5
    code, out, _ = call(capsys, "forecast", write(tmp_path / "a.jsonl", run()), "--mean-of", "3")
    assert code == 0 and out.count("the mean of 3 evaluations") == 2
    with pytest.raises(SystemExit):
        call(capsys, "forecast", tmp_path / "a.jsonl", "--mean-of", "0")
    assert "whole number from 1" in capsys.readouterr().err
    with pytest.raises(CurveError, match="at least 1; got 0"):
        forecast(fitted, mean_of=0)
