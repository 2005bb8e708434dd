"""benchmarks/real_curves.py on a small synthetic file, compared with figures by hand."""

import numpy as np
import pytest


@pytest.fixture
def bench(benchmark):
    return benchmark("real_curves")


def rows(name, values, repo="", kind=""):
    return [f"{name},{repo},{kind},{10 * (i + 1)},{value}" for i, value in enumerate(values)]


FELL = [0.2, 0.4, 0.6, 0.6, 0.6, 0.4, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2]
FLAT = [0.5, 0.52, 0.48, 0.5, 0.52, 0.48, 0.5, 0.52, 0.48, 0.5]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "runs.csv"
    lines = ["run,repo,kind,compute,value", *rows("fell", FELL, "lab", "collapse"), *rows("flat", FLAT)]
    path.write_text("\n".join([*lines, *rows("short", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])]) + "\n")
    return path


def test_a_split_shows_the_share_and_at_least_five_points_and_scores_the_rest(bench, file):
    fell, flat, short = bench.read_runs(file, (0.0, 1.0))
    # 0.3 of 12 is 4, so 5 are shown; 0.7 of 12 is 8
    early, late = bench.split(fell, 0.3), bench.split(fell, 0.7)
    assert (early.shown, late.shown) == (5, 8)
    # all points from the eighth on are 0.2; the best mean of three is 0.6, the last one 0.3
    assert late.error["last tenth"] == pytest.approx(0.0) and late.error["last value"] == pytest.approx(0.0)
    assert late.fallen and not early.fallen
    # with 5 points the last value is 0.6: the errors after it are 0.2, 0.3 and five times 0.4
    assert early.error["last tenth"] == pytest.approx(np.sqrt((0.04 + 0.09 + 5 * 0.16) / 7))
    assert len(late.rank) == 4 and 0 <= min(late.rank) <= max(late.rank) <= 1
    # at least three points must remain: not for any split of 7 points, but for the split of 10 points at 0.7
    assert bench.split(short, 0.3) is None
    assert bench.split(flat, 0.7).shown == 7


def test_the_balanced_error_is_a_mean_over_repositories(bench):
    def made(repo, error):
        return bench.Split("r", repo, "flat", 0.5, 5, False, {"forecast": error}, 1.0, 0, False, [0.5])

    # (0.1 + 0.3) / 2 = 0.2 in one, 0.6 in the other: 0.4, where the mean over splits is 1 / 3
    assert bench.balanced([made("a", 0.1), made("a", 0.3), made("b", 0.6)], "forecast") == pytest.approx(0.4)


def test_calibration_counts_ranks_in_central_intervals(bench):
    made = bench.Split("r", "a", "flat", 0.5, 5, False, {"forecast": 0.1}, 1.0, 0, False, [0.5, 0.2, 0.03, 0.75])
    # distances from one half: 0, 0.3, 0.47, 0.25; half widths 0.05 to 0.45
    assert bench.calibration([made]) == pytest.approx([0.25] * 4 + [0.5, 0.75, 0.75, 0.75, 0.75])
