import pytest

from scalerl.reading.curves.advise import FIFTHS, advice_kind, count, public_cases, share_that_gained


@pytest.mark.parametrize(
    ("gain", "high", "climbs", "kind"),
    [
        (0.060, 0.09, True, "continue"),
        (0.008, 0.01, True, "stop"),
        (0.025, 0.09, True, "about"),  # a quarter of 0.02 above it
        (0.0149, 0.30, True, "stop"),
        (0.008, 0.04, False, "open"),
        (0.008, 0.039, False, "stop"),
        (0.016, 0.10, False, "open"),  # before "about"
        (0.021, 0.10, False, "about"),
    ],
)
def test_the_kind_follows_from_gain_limit_and_climb(gain, high, climbs, kind):
    assert advice_kind(gain, high, 0.02, climbs=climbs) == kind
    assert advice_kind(50 * gain, 50 * high, 1.0, climbs=climbs) == kind


@pytest.mark.parametrize(
    ("action", "limit", "counted"),
    [  # counted with pandas
        ("stop", 0.02, (88, 121, 29)),
        ("continue", 0.02, (139, 194, 41)),
        ("open", 0.02, (66, 125, 39)),
        ("go back", 0.02, None),  # 9 cases
        ("continue", 0.1, None),  # 11 cases
    ],
)
def test_public_cases_are_counted_for_the_users_own_limit(action, limit, counted):
    assert count(action, limit) == counted


def test_the_cases_are_513_cuts_of_68_repositories():
    assert (len(public_cases()), len({case.repository for case in public_cases()})) == (513, 68)


def test_each_probability_has_a_fifth():
    assert [share_that_gained(p) for p in (0.0, 0.33, 0.48, 0.68, 1.0)] == [share for _, share in FIFTHS]
