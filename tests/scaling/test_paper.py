import numpy as np
import pytest
from simulated_runs import run

from scalerl.scaling import PUBLISHED_GRID, Curve, CurveError, PaperGrid, fit, sigmoid

# Table 1 of arXiv 2510.13786: C_mid, B, A; and the grid of C_mid that contains the value
SMALL, LARGE = np.linspace(100, 4000, 100), np.linspace(4000, 16_000, 100)
TABLE_1 = {
    "ScaleRL": (2542, 1.92, 0.610, SMALL),
    "ScaleRL-32k": (11272, 1.89, 0.645, LARGE),
    "ScaleRL-8gen": (2542, 2.44, 0.585, SMALL),
    "ScaleRL-24gen": (3054, 2.22, 0.590, SMALL),
    "ScaleRL-32gen": (2936, 2.07, 0.595, SMALL),
    "ScaleRL-Scout": (4242, 1.65, 0.710, LARGE),
    "ScaleRL-bs512": (2818, 1.77, 0.605, SMALL),
    "ScaleRL-bs2048": (10909, 1.70, 0.645, LARGE),
    "math+code, math": (2896, 2.05, 0.595, SMALL),
    "math+code, code": (1675, 1.09, 0.615, SMALL),
}


@pytest.mark.parametrize("name", TABLE_1)
def test_noise_free_curves_of_table_1_return_their_row_to_grid_resolution(name):
    midpoint, efficiency, asymptote, midpoints = TABLE_1[name]
    compute = np.linspace(1500, 50_000 if midpoint > 4000 else 16_000, 75)
    curve = Curve(compute, sigmoid(compute, asymptote, efficiency, midpoint, 0.2))
    fitted = fit(curve, method="paper", r0=0.2, settings=PaperGrid(PUBLISHED_GRID.asymptotes, midpoints))
    assert fitted.asymptote.mean == pytest.approx(asymptote, abs=1e-9)
    assert fitted.midpoint.mean == pytest.approx(midpoint, abs=1.0)
    assert fitted.efficiency.mean == pytest.approx(efficiency, abs=0.005)


def test_the_midpoints_printed_in_the_paper_miss_its_own_table_by_up_to_half_a_step():
    # none of the table's C_mid lies on linspace(100, 40000, 100), whose step is 403
    compute = np.linspace(1500, 16_000, 75)
    curve = Curve(compute, sigmoid(compute, 0.61, 1.92, 2542, 0.2))
    fitted = fit(curve, method="paper", r0=0.2, settings=PUBLISHED_GRID)
    assert fitted.midpoint.mean == pytest.approx(2518.2, abs=0.1)


def test_r0_is_the_first_point_unless_it_is_given():
    assert fit(run(noise=0.0), method="paper").initial.mean == 0.2


def test_the_procedure_reports_no_uncertainty():
    fitted = fit(run(), method="paper")
    assert np.isnan(fitted.asymptote.sd)
    assert not fitted.identified
    assert fitted.reason == "this fit has no uncertainty; use method='posterior' to get one"
    assert fitted.to_dict()["asymptote"]["sd"] is None


def test_a_grid_below_the_initial_level_is_an_error():
    with pytest.raises(CurveError, match="no asymptote"):
        fit(run(noise=0.0), method="paper", settings=PaperGrid(asymptotes=[0.1, 0.15]))


def test_a_result_on_the_edge_of_the_grid_is_reported():
    fitted = fit(run(noise=0.0), method="paper", settings=PaperGrid(asymptotes=[0.4, 0.5]))
    assert "asymptote" in fitted.at_bound
