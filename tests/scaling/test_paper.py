import json

import numpy as np
import pytest
from commands import call
from simulated_runs import run, write

from scalerl.reading.curves import PUBLISHED_GRID, Curve, CurveError, PaperGrid, paper_fit, sigmoid

# Table 1 of arXiv 2510.13786: C_mid, B, A; and the grid of C_mid that contains the value
SMALL, LARGE = np.linspace(100, 4000, 100), np.linspace(4000, 16_000, 100)
TABLE_1 = {
    "ScaleRL": (2542, 1.92, 0.610, SMALL),
    "ScaleRL-32k": (11272, 1.89, 0.645, LARGE),
    "ScaleRL-8gen": (2542, 2.44, 0.585, SMALL),
    "ScaleRL-Scout": (4242, 1.65, 0.710, LARGE),
    "math+code, code": (1675, 1.09, 0.615, SMALL),
}


@pytest.mark.parametrize("name", TABLE_1)
def test_noise_free_curves_of_table_1_return_their_row_to_grid_resolution(name):
    midpoint, efficiency, asymptote, midpoints = TABLE_1[name]
    compute = np.linspace(1500, 50_000 if midpoint > 4000 else 16_000, 75)
    curve = Curve(compute, sigmoid(compute, asymptote, efficiency, midpoint, 0.2))
    best = paper_fit(curve, r0=0.2, grid=PaperGrid(PUBLISHED_GRID.asymptotes, midpoints))
    assert best.asymptote == pytest.approx(asymptote, abs=1e-9)
    assert best.midpoint == pytest.approx(midpoint, abs=1.0)
    assert best.efficiency == pytest.approx(efficiency, abs=0.005)


def test_the_command_returns_the_rows_of_table_1_although_early_points_are_excluded(capsys, tmp_path):
    # the first point that is kept, as R0, would give B 2.78 and C_mid 3645 for the first row
    midpoint, efficiency, asymptote, midpoints = TABLE_1["ScaleRL"]
    compute = np.append(0.0, np.linspace(100, 16_000, 160))
    path = write(tmp_path / "row.jsonl", Curve(compute, sigmoid(compute, asymptote, efficiency, midpoint, 0.2)))
    low, high = midpoints[0], midpoints[-1]
    grid = ["--asymptotes", 0.45, 0.8, 71, "--midpoints", low, high, 100]
    code, out, _ = call(capsys, "fit", path, "--method", "paper", "--exclude-below", 1500, *grid, "--json")
    found = json.loads(out)
    assert code == 0 and found["initial"] == pytest.approx(0.2)
    assert found["asymptote"] == pytest.approx(asymptote, abs=1e-9)
    assert found["midpoint"] == pytest.approx(midpoint, abs=1.0)
    assert found["efficiency"] == pytest.approx(efficiency, abs=0.005)


def test_without_the_evaluation_before_training_the_command_asks_for_r0_and_takes_it(capsys, tmp_path):
    compute = np.linspace(100, 16_000, 160)
    path = write(tmp_path / "late.jsonl", Curve(compute, sigmoid(compute, 0.61, 1.92, 2542, 0.2)))
    words = ["fit", path, "--method", "paper", "--exclude-below", 1500]
    code, out, error = call(capsys, *words)
    assert (code, out) == (2, "") and "first point is at 100 device-hours; give R0 with --r0" in error
    code, out, _ = call(capsys, *words, "--r0", 0.2, "--midpoints", 100, 4000, 100, "--json")
    found = json.loads(out)
    assert (found["asymptote"], found["midpoint"]) == (pytest.approx(0.61), pytest.approx(2542, abs=1.0))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--asymptotes", 0.45, 0.8, 71], "--asymptotes is the grid of --method paper"),
        (["--method", "paper", "--asymptotes", 0.8, 0.45, 71], "--asymptotes: got 0.8 0.45 71; allowed: LOW < HIGH"),
        (["--method", "paper", "--midpoints", 100, 4000, 2.5], "a whole number N from 2 to 1000"),
        (["--method", "paper", "--asymptotes", 0.5, 1.2, 10], "the grid of A must ascend within [0, 1]"),
        (["--method", "paper", "--asymptotes", 0.1, 0.15, 10], "larger values with --asymptotes"),
        (["--method", "paper", "--r0", -0.1], "r0 must lie in [0, 1)"),
        (["--together", "--method", "paper", "--midpoints", 1, 2, 3], "--together has no --method paper"),
    ],
)
def test_a_grid_or_an_r0_that_cannot_be_meant_is_one_line(words, message, capsys, tmp_path):
    code, out, error = call(capsys, "fit", write(tmp_path / "one.jsonl", run()), *words)
    assert (code, out) == (2, "") and message in error and len(error.splitlines()) == 1


def test_nist_rat42_at_the_certified_asymptote_and_midpoint_has_the_certified_steepness_and_residuals():
    # NIST StRD Rat42 (pasture yield; Ratkowsky 1983): y = b1 / (1 + exp(b2 - b3 x)).
    # With x = ln C and R0 = 0 this is the law: A = b1, B = b3, ln C_mid = b2 / b3.
    pasture_yield = [8.930, 10.800, 18.590, 22.330, 39.350, 56.110, 61.730, 64.620, 67.080]
    time = [9.000, 14.000, 21.000, 28.000, 42.000, 57.000, 63.000, 70.000, 79.000]
    asymptote, steepness, midpoint = 7.2462237576e01, 6.7359200066e-02, np.exp(2.6180768402e00 / 6.7359200066e-02)
    grid = PaperGrid([asymptote - 1, asymptote, asymptote + 1], midpoint * np.array([0.5, 1.0, 2.0]))
    best = paper_fit(Curve(np.exp(time), pasture_yield, bounds=(0, 100)), r0=0.0, grid=grid)
    assert (best.asymptote, best.midpoint) == (asymptote, midpoint)
    assert best.efficiency == pytest.approx(steepness, rel=1e-5)
    assert best.residual_sum_of_squares == pytest.approx(8.0565229338e00, rel=1e-6)


def test_r0_is_the_point_at_compute_0_unless_it_is_given():
    curve = run(noise=0.0)
    assert paper_fit(curve).initial == paper_fit(curve, exclude_below=1500).initial == 0.2
    assert paper_fit(curve, r0=0.1).initial == 0.1


def test_the_procedure_reports_no_uncertainty():
    best = paper_fit(run())
    assert best.to_dict()["asymptote"] == best.asymptote == pytest.approx(0.61, abs=0.01)
    assert "gives no uncertainty" in str(best)


def test_a_constant_curve_has_no_climb_to_fit():
    with pytest.raises(CurveError, match="no climb"):
        paper_fit(Curve(range(8), [0.5] * 8))


def test_a_result_on_the_edge_of_the_grid_is_reported():
    best = paper_fit(run(noise=0.0), grid=PaperGrid(asymptotes=[0.4, 0.5]))
    assert "asymptote" in best.at_edge and "ceiling A lies at the edge of the grid" in str(best)
