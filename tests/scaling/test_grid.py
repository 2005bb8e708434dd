import numpy as np
import pytest

from scalerl.reading.curves.grid import pick, systematic, zoom

LIMITS = np.array([[-10.0, 10.0], [-10.0, 10.0]])


def gaussian(center, sd):
    """Return a normal density in the plane, and its log at the centers of cells; a single variant."""

    def log_density(centers):
        x, y = np.ix_(*centers)
        return -0.5 * (((x - center[0]) / sd[0]) ** 2 + ((y - center[1]) / sd[1]) ** 2)[None]

    return log_density


@pytest.mark.parametrize("sd", [(2.0, 1.0), (1e-2, 1e-3), (1e-6, 1e-5)])
def test_the_mass_is_found_however_narrow_it_is(sd):
    cells = zoom(gaussian((3.3, -4.4), sd), LIMITS, (40, 30))
    # the integral of exp(-q/2) over the plane is 2 pi sd_x sd_y
    assert cells.log_mass() == pytest.approx(np.log(2 * np.pi * sd[0] * sd[1]), abs=0.02)


@pytest.mark.parametrize("sd", [(2.0, 1.0), (1e-4, 1e-3)])
def test_draws_have_the_moments_of_the_density(sd):
    cells = zoom(gaussian((3.3, -4.4), sd), LIMITS, (40, 30))
    x, y = pick(cells, 4000, np.random.default_rng(0)).place_KD
    assert x.mean() == pytest.approx(3.3, abs=0.05 * sd[0])
    assert y.mean() == pytest.approx(-4.4, abs=0.05 * sd[1])
    # moving a draw within its cell adds the variance of a uniform, which the weights of `posterior` remove again
    assert (x.std() / sd[0], y.std() / sd[1]) == (pytest.approx(1.04, abs=0.05), pytest.approx(1.04, abs=0.05))


def test_variants_share_the_draws_in_proportion_to_their_mass():
    def log_density(centers):
        one = gaussian((0.0, 0.0), (1.0, 1.0))(centers)
        return np.concatenate([one, one + np.log(3.0)])

    picks = pick(zoom(log_density, LIMITS, (40, 30)), 4000, np.random.default_rng(0))
    assert picks.variant_D.mean() == pytest.approx(0.75, abs=1e-3)


def test_a_ridge_from_corner_to_corner_ends_the_zoom():
    def log_density(centers):
        x, y = np.ix_(*centers)
        return -0.5 * ((x - y) / 0.05)[None] ** 2

    assert np.isfinite(zoom(log_density, LIMITS, (40, 30)).log_mass())


def test_systematic_draws_have_little_random_error():
    assert systematic(np.array([1.0, 0.0, 2.0, 1.0]), 8).tolist() == [0, 0, 2, 2, 2, 2, 3, 3]
