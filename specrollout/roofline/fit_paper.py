"""The published form's parameters from a sweep, in its two stages: the target, then drafter and verify.

Throughput is that of measured GEMMs where given, else it is fitted in the second stage. All rows take part, as
published. The loss is robust, where the published one is a mean square, and the search starts from several points, for
the maxima have flat sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.fit import NOISE, Measured
from specrollout.roofline.model import Floats
from specrollout.roofline.paper import PaperForm
from specrollout.roofline.sweep import Sweep

DEFAULT_FLOP_PER_S = 2e14
FIRST = ("bandwidth_bytes_per_s", "kv_bytes", "target_overhead_us")
SECOND = ("drafter_bytes_factor", "drafter_overhead_us", "verify_overhead_us")
THROUGHPUT = "throughput_flop_per_s"


@dataclass(frozen=True, slots=True)
class FittedPaper:
    """A fitted form; `covariance` is that of the logarithms of `names`, zero between the stages."""

    form: PaperForm
    names: tuple[str, ...]
    covariance: Floats
    cost: float


def fit_paper(
    sweep: Sweep, constants: ModelConstants, gemm_flop_per_s: float | None = None, communication_s: float = 0.0
) -> FittedPaper:
    """Fit the published form to a sweep."""
    measured = Measured.of(sweep)
    fixed = {"throughput_flop_per_s": gemm_flop_per_s or DEFAULT_FLOP_PER_S, "communication_s": communication_s}
    seconds = float(measured.target[3].min())
    bandwidth = constants.target_bytes / seconds
    first_starts = [
        (bandwidth * f, constants.kv_bytes * k, 1e6 * seconds * c) for f in (1.0, 1.1) for k, c in _TARGET_STARTS
    ]
    unknown = {"drafter_bytes_factor": 1.0, "drafter_overhead_us": 1.0, "verify_overhead_us": 1.0}

    def target_only(values: Sequence[float]) -> list[Floats]:
        form = _form(constants, {**fixed, **unknown, **dict(zip(FIRST, values, strict=True))})
        return [np.log(form.t_target(*measured.target[:2]) / measured.target[3])]

    first, first_covariance, first_cost = _search(target_only, first_starts)
    known = {**fixed, **dict(zip(FIRST, first, strict=True))}
    names = SECOND if gemm_flop_per_s else (*SECOND, THROUGHPUT)
    second_starts = [
        (eta, 1e6 * seconds * d, 1e6 * seconds * v, DEFAULT_FLOP_PER_S)[: len(names)]
        for eta in (1.0, 1.5)
        for d, v in ((0.005, 0.01), (0.02, 0.03))
    ]

    def rest(values: Sequence[float]) -> list[Floats]:
        errors = measured.log_errors(_form(constants, {**known, **dict(zip(names, values, strict=True))}))
        return [errors[what] for what in ("drafter", "verify", "cycle", "speedup")]

    second, second_covariance, second_cost = _search(rest, second_starts)
    form = _form(constants, {**known, **dict(zip(names, second, strict=True))})
    size = len(FIRST) + len(names)
    covariance = np.zeros((size, size))
    covariance[: len(FIRST), : len(FIRST)] = first_covariance
    covariance[len(FIRST) :, len(FIRST) :] = second_covariance
    return FittedPaper(form, (*FIRST, *names), covariance, first_cost + second_cost)


_TARGET_STARTS = ((0.3, 0.001), (0.6, 0.003), (0.6, 0.0003))


def _form(constants: ModelConstants, values: dict[str, float]) -> PaperForm:
    return PaperForm(
        target_bytes=constants.target_bytes,
        drafter_bytes=constants.drafter_bytes,
        dense_flop=constants.dense_flop,
        attention_flop=constants.attention_flop,
        **values,
    )


def _search(
    errors: Callable[[Sequence[float]], list[Floats]], starts: Sequence[Sequence[float]]
) -> tuple[list[float], Floats, float]:
    """The best of robust searches over positive values: values, covariance of their logarithms, cost."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    def residuals(logs: Floats) -> Floats:
        return np.concatenate(errors([float(v) for v in np.exp(logs)])) / NOISE

    results = [least_squares(residuals, np.log(start), loss="soft_l1", x_scale=0.1, max_nfev=400) for start in starts]
    best = min(results, key=lambda result: float(result.cost))
    return [float(v) for v in np.exp(best.x)], np.linalg.pinv(best.jac.T @ best.jac), float(best.cost)
