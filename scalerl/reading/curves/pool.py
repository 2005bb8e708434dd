"""One law over the runs of different settings: the parameters of a run's curve are linear in the logs of its settings.

    theta_i = slopes^T x_i + bends^T x_i^2 + s(x_i) + e_i,    theta = (logit A, ln C_mid, ln B, R0)

Bends keep the law from going straight on where no setting was run. They are much smaller than slopes or nearly as
large, for each parameter, as the data decide. `s` is a smooth deviation from this line, shared by settings within a
factor of about four, and `e` the scatter of single runs; tau^2 is their variance. The posterior of each run, divided by
its prior, is its likelihood: a mixture of normal distributions, so a ceiling that is not identified stays wide and
curved. Slopes, bends, s and e are integrated in closed form. A Gibbs sampler draws tau, the share of s, and the
parameters of each run given those of the others.

Axes in names: N runs, U different settings of runs, S settings to predict, P columns of the design, K = 4 parameters, T
values of tau, the share of s and the size of bends, B directions of a basis of U settings, D components or draws, C
chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scalerl.reading.curves.comparison import as_fits, check_alike
from scalerl.reading.curves.curve import Curve
from scalerl.reading.curves.estimate import TAILS
from scalerl.reading.curves.fit import Fit
from scalerl.reading.curves.grid import systematic
from scalerl.reading.curves.law import Array, climb
from scalerl.reading.curves.sampling import Prior
from scalerl.reading.curves.settings import Design, Setting, check_settings, distinct
from scalerl.reading.tables.errors import CurveError

CENTER_SD = np.array([2.0, 3.0, 0.5, 0.5])
"""Prior standard deviation of each parameter at the center of the settings; wider than published runs differ."""

SLOPE_SD = np.array([0.3, 1.0, 0.2, 0.15])
"""Prior standard deviation of the change of each parameter per factor e of a setting, and of each category.

In ScaleRL's Table 1, ln C_mid changes by up to 1.8, logit A by 0.18 and ln B by 0.1 per factor e; R0 of public models
of one family changes by up to 0.24."""

BEND_SD = (SLOPE_SD / 8, SLOPE_SD / 2)
"""Prior standard deviations of the quadratic term in the log of a number, either equally likely.

With the first, a slope changes within a factor of 55 by about as much as slopes differ from zero: the law goes straight
on. With the second it does so within a factor of e^2 = 7, over which settings are usually varied. Half of all laws then
have an optimum (or a worst value) inside this range, as a user expects who tries values on both sides of a default. An
optimum inside the range is 7 standard deviations of the first kind, which then missed it with confidence."""

SCATTER = np.array([0.1, 0.2, 0.15, 0.02])
"""Prior median of tau. Three seeds of the paper scatter by 0.05 in logit A; deviations from the line come on top."""

SCATTER_GRID, SMOOTH_GRID, BENT_GRID = (
    grid.ravel()
    for grid in np.meshgrid(np.exp(np.linspace(-1.6, 1.6, 9)), [0.1, 0.5, 0.9], range(len(BEND_SD)), indexing="ij")
)
"""Values of tau in multiples of SCATTER, whose logarithm has the prior standard deviation 0.8; of the share of tau^2
that similar settings have in common, which only more than one run per setting can tell; and of the index in BEND_SD."""

REACH = np.log(4.0)
"""Distance in the log of a setting at which the shared deviations have correlation exp(-1/2)."""

EDGE = 0.005
"""Smallest distance of A from the metric's bounds, as a share of the range, because its logit has no limit."""

COMPONENTS, CHAINS, WARM_UP_SWEEPS, SAMPLED_SWEEPS = 100, 20, 15, 40
"""Components of a likelihood; chains of the sampler; sweeps that are left out, and that are kept."""

ROUNDING = 1e-12
"""Share of the largest variance below which a direction of shared deviations is rounding."""

RUNS_AT_ONCE = 64
"""Runs whose conditional distributions are prepared together."""

PUBLISHED = {
    "prompts_per_step": (0.13, 1.07, -0.05, 0.0),
    "generations_per_prompt": (0.15, 1.20, -0.14, 0.0),
    "thinking_tokens": (0.18, 1.80, -0.02, 0.0),
}
"""Prior means of the slopes by the last part of a setting's name: least squares on ScaleRL's Table 1, one run per row.

With more generations per prompt the batch grows too, so its slope is the sum of both."""


class Cloud(NamedTuple):
    """The likelihood of a run: normal components with equal weights and one covariance."""

    center_DK: Array
    covariance_KK: Array
    start_K: Array
    """Where the sampler starts. The likelihood has most of its mass at high ceilings, from which it moves slowly."""


def likelihood(fit: Fit) -> Cloud:
    """Return the posterior of a run, divided by its prior, as a mixture with the mean and covariance of the draws."""
    low, high = fit.curve.bounds
    draws, prior = fit.draws, Prior()
    plain_D = (draws.second_gain == 0) & (draws.delay == 0)
    if plain_D.sum() >= COMPONENTS:  # draws with a late start or a second rise have an A and C_mid of another curve
        draws = draws.select(plain_D)
    share_D = np.clip((draws.asymptote - low) / (high - low), EDGE, 1 - EDGE)
    log_c_D, log_b_D = np.log(draws.midpoint), np.log(draws.efficiency)
    theta_DK = np.stack([logit(share_D), log_c_D, log_b_D, (draws.initial - low) / (high - low)], axis=1)
    # log of one over the prior density of (logit A, ln C_mid, ln B)
    spread_D = (log_b_D - np.log(prior.efficiency)) / prior.efficiency_spread
    log_weight_D = (
        -np.log(share_D * (1 - share_D)) + np.maximum(log_c_D - np.log(fit.last_compute), 0) + spread_D**2 / 2
    )
    weight_D = np.exp(log_weight_D - log_weight_D.max())
    # without large weights, which would make the result depend on a few draws (Ionides 2008)
    weight_D = np.minimum(weight_D, weight_D.mean() * np.sqrt(len(weight_D)))
    order_D = np.argsort(log_c_D, kind="stable")
    return smoothed(theta_DK[order_D[systematic(weight_D[order_D], COMPONENTS)]], start_K=theta_DK.mean(axis=0))


def smoothed(theta_DK: Array, start_K: Array | None = None) -> Cloud:
    """Return the kernel density of draws; their shrunk centers preserve mean and covariance (West 1993)."""
    count, size = theta_DK.shape
    # a quarter of West's variance: wider kernels leave the curved ridge of A and C_mid, and many runs then raise A
    width = count ** (-2.0 / (size + 4)) / 4
    mean_K, covariance_KK = theta_DK.mean(axis=0), np.cov(theta_DK.T) + 1e-8 * np.eye(size)
    center_DK = mean_K + np.sqrt(1 - width) * (theta_DK - mean_K)
    return Cloud(center_DK, width * covariance_KK, mean_K if start_K is None else start_K)


def logit(share: Array) -> Array:
    """Return ln(p / (1 - p))."""
    return np.asarray(np.log(share / (1 - share)))


def levels(theta: Array, compute: float | Array, bounds: tuple[float, float]) -> Array:
    """Return the level of parameters with a last axis of K at a compute; 0 <= R0 <= A in shares of the range."""
    asymptote = 1 / (1 + np.exp(-theta[..., 0]))
    initial = np.clip(theta[..., 3], 0.0, asymptote)
    done = climb(np.log(compute), theta[..., 1], np.exp(theta[..., 2]))
    return np.asarray(bounds[0] + (bounds[1] - bounds[0]) * (initial + (asymptote - initial) * done))


class Scatter(NamedTuple):
    """The normal distribution of the parameters of all runs before their curves are seen, for each tau.

    Runs of one setting differ only by e, so their mean has all that they tell about the law. The covariance of the
    means of the U settings is X D X^T + tau^2 (m near + (1 - m) / count), with m the share of s. Its inverse is
    `basis` diag(`weight`) `basis`^T + diag(count `alone`) - `tie` `tie`^T. The basis makes `near` and the counts
    diagonal at once. Settings near each other deviate together, so of many settings `near` has few directions; the
    others are like independent settings and are left out of the basis, and then `alone` is not 0.
    """

    setting_N: np.typing.NDArray[np.intp]
    """Index of the setting of each run."""
    count_U: np.typing.NDArray[np.intp]
    columns_UP: Array
    mean_PK: Array
    sd_KTP: Array
    basis_UB: Array
    weight_KTB: Array
    """Inverse variance of each direction, less `alone`."""
    alone_KT: Array
    tie_KTUP: Array
    diagonal_KTU: Array
    """Diagonal of the inverse covariance of the means."""
    single_KT: Array
    """Variance of e."""
    log_determinant_KT: Array
    """Log determinant of the covariance of all runs."""

    @property
    def is_whole(self) -> bool:
        """Whether the basis has as many directions as there are settings."""
        return bool(len(self.count_U) == self.basis_UB.shape[1])

    def times_precision(self, cross_SU: Array, k: int, t: int) -> Array:
        """Return rows times the inverse covariance of the means of the settings, for one parameter and tau."""
        tie_UP = self.tie_KTUP[k, t]
        if self.is_whole:
            precision_UU = (self.basis_UB * self.weight_KTB[k, t]) @ self.basis_UB.T - tie_UP @ tie_UP.T
            return np.asarray(cross_SU @ precision_UU)
        product_SU = cross_SU * (self.count_U * self.alone_KT[k, t])
        product_SU += ((cross_SU @ self.basis_UB) * self.weight_KTB[k, t]) @ self.basis_UB.T
        return np.asarray(product_SU - (cross_SU @ tie_UP) @ tie_UP.T)

    def means(self, of_run: Array) -> Array:
        """Return the means over the runs of each setting; the axis before the last is N, and becomes U."""
        sums_UXK = np.zeros((len(self.count_U), *of_run.shape[:-2], of_run.shape[-1]))
        np.add.at(sums_UXK, self.setting_N, np.moveaxis(of_run, -2, 0))
        return np.asarray(np.moveaxis(sums_UXK, 0, -2) / self.count_U[:, None])


@dataclass(frozen=True, eq=False)
class Law:
    """Draws of the joint law."""

    design: Design
    settings: list[Setting]
    """Settings of each run."""
    scatter: Scatter
    mean_DUK: Array
    """Mean parameters of the runs of each setting, in the order of `distinct(settings)`."""
    tau_DK: Array
    """Index of tau in its grid."""

    def at(self, settings: Sequence[Setting], seed: int = 0) -> Array:
        """Return draws of the parameters at these settings without the scatter of single runs, shape (D, S, K)."""
        columns_SP = bent_columns(self.design, settings)
        near_SU = correlation(self.design, settings, distinct(self.settings))
        return self._given_runs(columns_SP, near_SU, correlation(self.design, settings, settings), seed)

    def slopes(self) -> dict[str, Array]:
        """Return draws of the change of each parameter per factor e of each number, shape (D, K)."""
        _, names = self.design.columns(self.settings[:1])
        size = len(self.scatter.mean_PK)
        none = np.zeros((size, len(self.scatter.count_U)))
        line_DPK = self._given_runs(np.eye(size), none, np.zeros((size, size)), 2)
        return {name: line_DPK[:, names.index(name)] for name in self.design.numbers}

    def new_run(self, theta_DSK: Array, seed: int = 1) -> Array:
        """Add the scatter of a single run to draws of the parameters of a setting."""
        own_DK = np.sqrt(1 - SMOOTH_GRID[self.tau_DK]) * SCATTER * SCATTER_GRID[self.tau_DK]
        return np.asarray(theta_DSK + own_DK[:, None] * np.random.default_rng(seed).standard_normal(theta_DSK.shape))

    def _given_runs(self, line_SP: Array, near_SU: Array, near_SS: Array, seed: int) -> Array:
        """Draw line x slopes + deviations with these correlations, given the parameters of the runs, (D, S, K)."""
        rng, before = np.random.default_rng(seed), self.scatter
        drawn_DSK = np.empty((len(self.mean_DUK), len(line_SP), 4))
        for k in range(4):
            rest_DU = self.mean_DUK[:, :, k] - before.columns_UP @ before.mean_PK[:, k]
            for t in np.unique(self.tau_DK[:, k]):
                here_D = self.tau_DK[:, k] == t
                spread_SP = line_SP * before.sd_KTP[k, t] ** 2
                shared = SMOOTH_GRID[t] * (SCATTER[k] * SCATTER_GRID[t]) ** 2
                cross_SU = spread_SP @ before.columns_UP.T + shared * near_SU
                gain_SU = before.times_precision(cross_SU, k, t)
                value_S, vector_SS = np.linalg.eigh(spread_SP @ line_SP.T + shared * near_SS - gain_SU @ cross_SU.T)
                mean_DS = line_SP @ before.mean_PK[:, k] + rest_DU[here_D] @ gain_SU.T
                # the symmetric root does not depend on the signs of eigenvectors, which differ between libraries
                root_SS = (vector_SS * np.sqrt(np.maximum(value_S, 0.0))) @ vector_SS.T
                drawn_DSK[here_D, :, k] = mean_DS + rng.standard_normal(mean_DS.shape) @ root_SS
        return drawn_DSK


def bent_columns(design: Design, settings: Sequence[Setting]) -> Array:
    """Return the columns of the design, followed by the squares of those of numbers, shape (N, P)."""
    columns_NP, names = design.columns(settings)
    return np.hstack([columns_NP, columns_NP[:, [name in design.numbers for name in names]] ** 2])


def correlation(design: Design, settings: Sequence[Setting], others: Sequence[Setting]) -> Array:
    """Return the correlation of the shared deviations of settings, shape (S, N); 0 between categories."""
    (one_SP, names), (two_NP, _) = design.columns(settings), design.columns(others)
    square_SN, alike_SN = np.zeros((len(one_SP), len(two_NP))), np.ones((len(one_SP), len(two_NP)), bool)
    for p, name in enumerate(names):  # one column at a time: together they would need P times the memory
        apart_SN = one_SP[:, p, None] - two_NP[:, p]
        if name in design.numbers:
            square_SN += apart_SN**2
        else:
            alike_SN &= apart_SN == 0
    return np.asarray(np.exp(-0.5 * square_SN / REACH**2) * alike_SN)


def before_curves(design: Design, settings: Sequence[Setting], clouds: Sequence[Cloud], published: bool) -> Scatter:
    """Return the prior of the parameters of all runs for each tau."""
    unique = distinct(settings)
    index = {tuple(setting.items()): u for u, setting in enumerate(unique)}
    setting_N = np.array([index[tuple(setting.items())] for setting in settings])
    count_U = np.bincount(setting_N)
    columns_UP, (_, names) = bent_columns(design, unique), design.columns(unique)
    of_kind = [np.stack([SLOPE_SD if name else CENTER_SD for name in names] + [sd_K] * len(design.numbers))
               for sd_K in BEND_SD]  # fmt: skip
    sd_KTP = np.moveaxis(np.stack(of_kind)[BENT_GRID], 2, 0)
    mean_PK = np.zeros_like(of_kind[0])
    # the unit of compute is arbitrary, and so is the level before training
    center_K = np.mean([cloud.center_DK.mean(axis=0) for cloud in clouds], axis=0)
    mean_PK[0] = 0.0, center_K[1], np.log(Prior().efficiency), center_K[3]
    for p, name in enumerate(names):
        if published and name in design.numbers:
            mean_PK[p] = PUBLISHED.get(name.rpartition(".")[2], mean_PK[p])
    root_U = np.sqrt(count_U)
    value_B, vector_UB = np.linalg.eigh(root_U[:, None] * correlation(design, unique, unique) * root_U)
    told_B = value_B > ROUNDING * value_B[-1]  # the others do not differ from independent settings
    value_B, basis_UB = value_B[told_B], root_U[:, None] * vector_UB[:, told_B]
    columns_BP = basis_UB.T @ columns_UP
    tau_KT = SCATTER[:, None] * SCATTER_GRID
    single_KT = tau_KT**2 * (1 - SMOOTH_GRID)
    whole_KTB = 1 / (tau_KT[:, :, None] ** 2 * (SMOOTH_GRID[:, None] * value_B + 1 - SMOOTH_GRID[:, None]))
    alone_KT = np.zeros_like(single_KT) if told_B.all() else 1 / single_KT
    weight_KTB = whole_KTB - alone_KT[:, :, None]
    # by the lemmas of Woodbury and of the determinant: the slopes and bends have P columns, far fewer than runs
    inner_KTPP = np.einsum("bp,ktb,bq->ktpq", columns_BP, weight_KTB, columns_BP, optimize=True)
    inner_KTPP += ((columns_UP.T * count_U) @ columns_UP) * alone_KT[:, :, None, None]
    inner_KTPP = sd_KTP[..., None] * inner_KTPP * sd_KTP[:, :, None] + np.eye(len(mean_PK))
    value_KTP, vector_KTPP = np.linalg.eigh(inner_KTPP)
    root_KTPP = sd_KTP[..., None] * vector_KTPP / np.sqrt(value_KTP)[:, :, None]
    tie_KTUP = basis_UB @ (weight_KTB[..., None] * (columns_BP @ root_KTPP))
    tie_KTUP += (columns_UP * count_U[:, None]) @ root_KTPP * alone_KT[:, :, None, None]
    diagonal_KTU = weight_KTB @ (basis_UB**2).T + count_U * alone_KT[:, :, None] - (tie_KTUP**2).sum(axis=-1)
    log_determinant_KT = np.log(value_KTP).sum(axis=-1) - np.log(whole_KTB).sum(axis=-1)
    log_determinant_KT += (len(settings) - len(value_B)) * np.log(single_KT)
    return Scatter(
        setting_N, count_U, columns_UP, mean_PK, sd_KTP, basis_UB, weight_KTB, alone_KT, tie_KTUP, diagonal_KTU,
        single_KT, log_determinant_KT,
    )  # fmt: skip


def pooled(
    clouds: Sequence[Cloud], settings: Sequence[Setting], published: bool = True, design: Design | None = None
) -> Law:
    """Draw the joint law from the likelihoods of runs.

    Args:
        clouds: Likelihood of each run.
        settings: Settings of each run.
        published: Whether slopes of `PUBLISHED` are prior means; otherwise all prior means are 0.
        design: Columns of the law; None: those of the settings.
    """
    design = design or Design.of(settings)
    before = before_curves(design, settings, clouds, published)
    rng = np.random.default_rng(0)
    line_NK = (before.columns_UP @ before.mean_PK)[before.setting_N]
    rest_CNK = np.tile([cloud.start_K for cloud in clouds], (CHAINS, 1, 1)) - line_NK
    log_prior_T = -0.5 * (np.log(SCATTER_GRID) / 0.8) ** 2
    samples: list[tuple[Array, Array]] = []
    for sweep in range(WARM_UP_SWEEPS + SAMPLED_SWEEPS):
        mean_CUK = before.means(rest_CNK)
        seen_CKB = np.swapaxes(mean_CUK, 1, 2) @ before.basis_UB
        tied_CKTP = np.einsum("ktup,cuk->cktp", before.tie_KTUP, mean_CUK, optimize=True)
        fit_CKT = np.einsum("ktb,ckb->ckt", before.weight_KTB, seen_CKB**2, optimize=True)
        fit_CKT -= (tied_CKTP**2).sum(axis=-1)
        # with directions left out, what the means tell alone is in the squares of the runs
        own_CNK = rest_CNK - mean_CUK[:, before.setting_N] if before.is_whole else rest_CNK
        fit_CKT += (own_CNK**2).sum(axis=1)[..., None] / before.single_KT
        log_CKT = log_prior_T - 0.5 * (fit_CKT + before.log_determinant_KT)
        tau_CK = (log_CKT + rng.gumbel(size=log_CKT.shape)).argmax(axis=-1)
        update_runs(before, clouds, rest_CNK, line_NK, tau_CK, rng)
        if sweep >= WARM_UP_SWEEPS:
            samples.append((before.means(rest_CNK + line_NK), tau_CK))
    mean_DUK, tau_DK = (np.concatenate(part) for part in zip(*samples, strict=True))
    return Law(design, list(settings), before, mean_DUK, tau_DK)


def update_runs(
    before: Scatter, clouds: Sequence[Cloud], rest_CNK: Array, line_NK: Array, tau_CK: Array, rng: np.random.Generator
) -> None:
    """Draw the parameters of each run, less the line, given those of the others, in place."""
    every_K = np.arange(4)
    single_CK, weight_CKB = before.single_KT[every_K, tau_CK], before.weight_KTB[every_K, tau_CK]
    mean_CUK = before.means(rest_CNK)
    seen_CKB = np.swapaxes(mean_CUK, 1, 2) @ before.basis_UB
    weighted_CKB = weight_CKB * seen_CKB
    tied_CKP = np.einsum("ckup,cuk->ckp", before.tie_KTUP[every_K, tau_CK], mean_CUK)
    diagonal_CKU = before.diagonal_KTU[every_K, tau_CK]
    scale_CKU = 1 / ((1 - 1 / before.count_U) / single_CK[..., None] + diagonal_CKU / before.count_U**2)
    for start in range(0, len(clouds), RUNS_AT_ONCE):
        part = slice(start, start + RUNS_AT_ONCE)
        batch = conditionals(clouds[part], np.moveaxis(scale_CKU[:, :, before.setting_N[part]], 2, 0))
        for i, conditional in enumerate(batch, start):
            u = before.setting_N[i]
            count, basis_B, tie_CKP = before.count_U[u], before.basis_UB[u], before.tie_KTUP[every_K, tau_CK, u]
            # the row of the inverse covariance of all runs, times their rests
            pull_CK = (rest_CNK[:, i] - mean_CUK[:, u] if before.is_whole else rest_CNK[:, i]) / single_CK
            pull_CK += (weighted_CKB @ basis_B - (tie_CKP * tied_CKP).sum(axis=-1)) / count
            mean_CK = rest_CNK[:, i] - pull_CK * scale_CKU[:, :, u] + line_NK[i]
            change_CK = (conditional.draw(mean_CK, rng) - line_NK[i] - rest_CNK[:, i]) / count
            rest_CNK[:, i] += change_CK * count
            mean_CUK[:, u] += change_CK
            weighted_CKB += weight_CKB * basis_B * change_CK[..., None]
            tied_CKP += tie_CKP * change_CK[..., None]


class Conditional(NamedTuple):
    """The distribution of a run's parameters given a normal distribution from the others, but for the latter's mean."""

    middle_K: Array
    off_DK: Array
    """Centers of the components, less their mean `middle_K`."""
    inverse_CKK: Array
    """Inverse of the sum of both covariances."""
    square_CD: Array
    """Quadratic form of the inverse in `off_DK`."""
    gain_CKK: Array
    root_CKK: Array
    """Cholesky factor of the covariance of one component."""

    def draw(self, mean_CK: Array, rng: np.random.Generator) -> Array:
        """Draw the parameters for these means."""
        away_CK = mean_CK - self.middle_K
        pull_CK = (self.inverse_CKK @ away_CK[:, :, None])[:, :, 0]
        # of the quadratic form in center - mean, only these two terms differ between components
        log_CD = pull_CK @ self.off_DK.T - 0.5 * self.square_CD
        sum_CD = np.exp(log_CD - log_CD.max(axis=1)[:, None]).cumsum(axis=1)
        chosen_C = (sum_CD >= (rng.random(len(mean_CK)) * sum_CD[:, -1])[:, None]).argmax(axis=1)
        center_CK = mean_CK + (self.gain_CKK @ (self.off_DK[chosen_C] - away_CK)[:, :, None])[:, :, 0]
        return np.asarray(center_CK + (self.root_CKK @ rng.standard_normal(mean_CK.shape)[:, :, None])[:, :, 0])


def conditionals(clouds: Sequence[Cloud], variance_NCK: Array) -> list[Conditional]:
    """Return the conditional distribution of each run; the normal distribution of the others has these variances."""
    center_NDK = np.stack([cloud.center_DK for cloud in clouds])
    covariance_NKK = np.stack([cloud.covariance_KK for cloud in clouds])
    middle_NK = center_NDK.mean(axis=1)
    off_NDK = center_NDK - middle_NK[:, None]
    outer_NXD = np.swapaxes((off_NDK[..., None] * off_NDK[:, :, None]).reshape(*off_NDK.shape[:2], -1), 1, 2)
    inverse_NCKK = np.linalg.inv(covariance_NKK[:, None] + variance_NCK[..., None] * np.eye(4))
    square_NCD = inverse_NCKK.reshape(*variance_NCK.shape[:2], -1) @ outer_NXD
    gain_NCKK = variance_NCK[..., None] * inverse_NCKK
    left_NCKK = gain_NCKK @ covariance_NKK[:, None]
    root_NCKK = np.linalg.cholesky((left_NCKK + np.swapaxes(left_NCKK, 2, 3)) / 2 + 1e-12 * np.eye(4))
    parts = (middle_NK, off_NDK, inverse_NCKK, square_NCD, gain_NCKK, root_NCKK)
    return [Conditional(*of_run) for of_run in zip(*parts, strict=True)]


# --------------------------------------------------------------------------------------------- runs and their check

TO_CHECK = 4
"""Smallest number of different settings with which the law is checked by leaving settings out."""

FOLDS, LEAST_FOLDS, CHECKED = 10, 2, 1_500
"""The law is drawn again at most this often to check it, each time without a part of the settings; less often with many
runs, so that all checks together draw about `CHECKED` of them, but at least twice."""


@dataclass(frozen=True)
class Check:
    """Errors of the last level of each run, predicted from runs at other settings: root mean squares."""

    law: float
    nearest: float
    """Error of the curve of the run with the nearest settings."""
    covered: float
    """Share of the runs within the 90% interval of the law."""
    runs: int


class Pool(NamedTuple):
    """The law over runs, and whether it predicts each of them from the others."""

    fits: list[Fit]
    """Fits of the runs that rise; `law.settings` are their settings."""
    clouds: list[Cloud]
    law: Law
    check: Check | None
    uses: str
    """"law", or "per-run fits" if the nearest run predicts better."""
    published: bool
    notes: list[str]


def pool(runs: Sequence[Curve | Fit], settings: Sequence[Setting], published: bool = True) -> Pool:
    """Return the law over runs and its check; arguments and errors as in `frontier`."""
    fits, notes = list(as_fits(list(runs))), []
    check_alike([f.curve for f in fits])
    if len(fits) != len(settings):
        raise CurveError(f"every run needs its settings; got {len(fits)} runs and {len(settings)} settings")
    lost = [f.posterior.stay_probability > 0.5 for f in fits]
    if any(lost):
        notes.append(f"{sum(lost)} of {len(fits)} runs are flat or have fallen and were left out")
        settings = [setting for setting, out in zip(settings, lost, strict=True) if not out]
        fits = [f for f, out in zip(fits, lost, strict=True) if not out]
    check_settings(settings)
    published = published and fits[0].curve.axis in ("device_hours", "flops")
    published = published and any(name.rpartition(".")[2] in PUBLISHED for name in settings[0])
    clouds = [likelihood(f) for f in fits]
    law = pooled(clouds, settings, published)
    check = check_left_out(law, clouds, fits, published)
    uses = "law" if check is None or check.law <= check.nearest else "per-run fits"
    return Pool(fits, clouds, law, check, uses, published, notes)


def check_left_out(law: Law, clouds: Sequence[Cloud], fits: Sequence[Fit], published: bool) -> Check | None:
    """Return how well the law predicts the last level of runs whose settings are left out, next to the nearest run.

    All runs of a setting are left out together: its other seeds would predict a run with no law.
    """
    settings = distinct(law.settings)
    if len(settings) < TO_CHECK:
        return None
    apart_UU, bounds = law.design.distances(settings, settings), fits[0].curve.bounds
    folds = min(FOLDS, len(settings), max(LEAST_FOLDS, CHECKED // len(fits)))
    setting_N, fold_N = law.scatter.setting_N, law.scatter.setting_N % folds
    errors, inside = [], []
    for fold in range(folds):
        held_out, remaining = (np.flatnonzero(here_N).tolist() for here_N in (fold_N == fold, fold_N != fold))
        again = pooled([clouds[n] for n in remaining], [law.settings[n] for n in remaining], published, law.design)
        theta_DSK = again.new_run(again.at([law.settings[n] for n in held_out]))
        fitted_fits = [fits[n] for n in remaining]
        for s, n in enumerate(held_out):
            at = fits[n].last_compute
            truth, level_D = float(fits[n].mean(at)[0]), levels(theta_DSK[:, s], at, bounds)
            beside = level_beside(apart_UU[setting_N[n], setting_N[remaining]], fitted_fits, at)
            errors.append((level_D.mean() - truth, beside - truth))
            inside.append(TAILS[0] <= (level_D < truth).mean() <= TAILS[1])
    by_law, by_nearest = np.sqrt(np.mean(np.square(errors), axis=0))
    return Check(float(by_law), float(by_nearest), float(np.mean(inside)), len(fits))


def level_beside(apart_N: Array, fits: Sequence[Fit], compute: float) -> float:
    """Return the mean level of the runs at the smallest distance."""
    nearest = np.flatnonzero(apart_N <= apart_N.min() + 1e-9)
    return float(np.mean([fits[int(i)].mean(compute)[0] for i in nearest]))
