import numpy as np
import pytest
from simulated_runs import TRUTH, run

from scalerl.scaling import Curve, Search, fit, sigmoid

# NIST StRD Rat42 (pasture yield; Ratkowsky 1983): y = b1 / (1 + exp(b2 - b3 x)).
# With x = ln C and R0 = 0 this is the law: A = b1, B = b3, ln C_mid = b2 / b3.
YIELD = [8.930, 10.800, 18.590, 22.330, 39.350, 56.110, 61.730, 64.620, 67.080]
TIME = [9.000, 14.000, 21.000, 28.000, 42.000, 57.000, 63.000, 70.000, 79.000]


@pytest.fixture(scope="module")
def rat42():
    curve = Curve(np.exp(TIME), YIELD, bounds=(0, 100))
    return fit(curve, method="least-squares", r0=0.0, settings=Search(efficiency_range=(0.01, 10.0)))


def test_nist_rat42_estimates_to_six_digits(rat42):
    asymptote, efficiency, midpoint = rat42.asymptote.mean, rat42.efficiency.mean, rat42.midpoint.mean
    assert asymptote == pytest.approx(7.2462237576e01, rel=1e-6)
    assert efficiency * np.log(midpoint) == pytest.approx(2.6180768402e00, rel=1e-6)
    assert efficiency == pytest.approx(6.7359200066e-02, rel=1e-6)


def test_nist_rat42_standard_errors_to_six_digits(rat42):
    efficiency, midpoint = rat42.efficiency.mean, rat42.midpoint.mean
    assert rat42.asymptote.sd == pytest.approx(1.7340283401e00, rel=1e-6)
    assert rat42.efficiency.sd == pytest.approx(3.4465663377e-03, rel=1e-6)
    # b2 = B ln C_mid: its error follows from the covariance of (ln C_mid, ln B)
    slope = efficiency * np.array([1.0, np.log(midpoint)])
    assert np.sqrt(slope @ rat42.covariance[1:3, 1:3] @ slope) == pytest.approx(8.8295217536e-02, rel=1e-6)


def test_nist_rat42_residuals_to_six_digits(rat42):
    assert rat42.residual_sum_of_squares == pytest.approx(8.0565229338e00, rel=1e-6)
    assert rat42.noise_sd == pytest.approx(1.1587725499e00, rel=1e-6)


def test_curves_without_noise_return_their_parameters():
    fitted = fit(run(noise=0.0), method="least-squares")
    assert {name: getattr(fitted, name).mean for name in TRUTH} == pytest.approx(TRUTH, rel=1e-6)
    assert fitted.at_bound == ()


def test_an_optimum_at_the_metrics_bound_is_reported():
    compute = np.linspace(0, 100, 20)
    # heading for 1.4, which a pass rate cannot reach
    curve = Curve(compute, sigmoid(compute, 1.4, 1.0, 150.0, 0.1))
    fitted = fit(curve, method="least-squares")
    assert fitted.at_bound == ("asymptote",)
    assert fitted.asymptote.mean == pytest.approx(1.0)
    assert "ceiling A reaches the limit of its allowed range" in fitted.warnings


def test_the_interval_of_a_parameter_ends_at_the_metrics_bound():
    # 0.99 + 1.7 sd is beyond 1
    fitted = fit(run(asymptote=0.99, noise=0.03), method="least-squares")
    assert fitted.asymptote.mean + 1.7 * fitted.asymptote.sd > 1
    assert fitted.asymptote.low < fitted.asymptote.mean <= fitted.asymptote.high == 1.0


def test_a_fit_whose_band_excludes_its_own_curve_has_no_uncertainty():
    # to a fifth of C_mid: the optimum has A = 1, half of the t draws lie beyond it
    early = fit(run(last=500.0, seed=2), method="least-squares")
    assert early.at_bound == ("asymptote",)
    assert early.asymptote.mean == pytest.approx(1.0)
    assert np.isnan([early.asymptote.low, early.efficiency.low, *early.predict([1000.0, 8000.0]).high]).all()
    assert not early.identified and "no uncertainty" in early.reason


@pytest.mark.parametrize("last", [500.0, 1500.0, 4000.0, 16_000.0])
def test_every_interval_lies_within_the_bounds_and_contains_its_mean(last):
    for seed in range(5):
        fitted = fit(run(last=last, seed=seed, initial=0.01), method="least-squares")
        band = fitted.predict(np.geomspace(1.0, 1e6, 30))
        parameters = [(e.mean, e.low, e.high) for e in (fitted.asymptote, fitted.initial)]
        for mean, low, high in [*parameters, *zip(band.mean, band.low, band.high, strict=True)]:
            assert np.isnan(low) or (0 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1)


def test_the_standard_error_is_the_scatter_of_repeated_fits():
    fits = [fit(run(seed=seed), method="least-squares") for seed in range(60)]
    scatter = np.std([f.asymptote.mean for f in fits])
    # 60 repeats give the scatter to 9%; three times that is allowed
    assert np.median([f.asymptote.sd for f in fits]) == pytest.approx(scatter, rel=0.27)
