"""What must hold of any latency model, toggle and online model, whatever their parameters and inputs."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specrollout.gamma import AcceptanceCurve
from specrollout.roofline.calibration import Calibration, fingerprint_of, read_calibration, write_calibration
from specrollout.roofline.constants import ModelConstants
from specrollout.roofline.model import boundary_batch, cycle_time, speedup
from specrollout.roofline.online import Estimate, OnlineRoofline
from specrollout.roofline.paper import PaperForm
from specrollout.roofline.parameters import parameters
from specrollout.roofline.physical import PhysicalForm
from specrollout.roofline.sweep import DRAFTER, MODES, TARGET, VERIFY
from specrollout.roofline.tiles import GRAPH_PADDINGS, EngineTraits
from specrollout.toggle import FilePredictor, PaperToggle, Toggle, ToggleConfig, View

BATCH, CONTEXT, GAMMA = st.integers(1, 300), st.integers(1, 40_000), st.integers(1, 16)


@st.composite
def constants(draw: Any) -> ModelConstants:
    params = draw(st.floats(5e7, 8e10))
    layers, heads = draw(st.integers(8, 96)), draw(st.integers(4, 64))
    head = 2 * params * draw(st.floats(0.01, 0.2))
    return ModelConstants(
        name="any",
        tp=draw(st.sampled_from([1, 2, 8])),
        target_bytes=2 * params + draw(st.sampled_from([0.0, head])),
        drafter_bytes=0.5 * params + 2 * head,
        dense_flop=2 * params,
        attention_flop=4.0 * layers * heads * 128,
        kv_bytes=layers * draw(st.sampled_from([512, 2048, 4096])),
        layers=layers,
        heads=heads,
        width=heads * 128,
        head_bytes=head,
    )


@st.composite
def traits(draw: Any) -> EngineTraits:
    return EngineTraits(draw(st.sampled_from(GRAPH_PADDINGS)), draw(st.booleans()), draw(st.booleans()))


@st.composite
def forms(draw: Any) -> PhysicalForm:
    of = draw(constants())
    logs = [
        float(np.clip(math.log(p.start) + draw(st.floats(-2, 2)) * min(p.spread, 2), math.log(p.low), math.log(p.high)))
        for p in parameters(of.tp)
    ]
    return PhysicalForm(of, draw(traits()), tuple(logs))


@st.composite
def paper_forms(draw: Any) -> PaperForm:
    def positive(low: float, high: float) -> float:
        return float(draw(st.floats(low, high)))

    return PaperForm(
        positive(1e8, 1e11),
        positive(1e7, 1e10),
        positive(1e8, 1e11),
        positive(1e4, 1e6),
        positive(1e10, 1e13),
        positive(1e12, 1e15),
        positive(1e3, 1e6),
        positive(1.0, 4.0),
        positive(0.0, 500.0),
        positive(0.0, 500.0),
        positive(0.0, 500.0),
        positive(0.0, 0.1),
        positive(0.0, 1e-3),
    )


ANY_FORM = st.one_of(forms(), paper_forms())


@given(ANY_FORM, BATCH, BATCH, CONTEXT, CONTEXT, GAMMA, GAMMA)
def test_more_work_takes_no_less_time(form: Any, b1: int, b2: int, s1: int, s2: int, g1: int, g2: int) -> None:
    (b1, b2), (s1, s2), (g1, g2) = sorted((b1, b2)), sorted((s1, s2)), sorted((g1, g2))
    slack = 1 - 1e-12
    assert form.t_target(b2, s2) >= slack * form.t_target(b1, s1) > 0
    assert form.t_drafter(b2, s2, g1) >= slack * form.t_drafter(b1, s1, g1) > 0
    assert form.t_verify(b2, s2, g2) >= slack * form.t_verify(b1, s1, g1) > 0
    if not isinstance(form, PhysicalForm) or form.traits.graph_padding != "query":
        assert cycle_time(form, b2, s2, g2) >= slack * cycle_time(form, b1, s1, g1)


@given(ANY_FORM, st.lists(st.tuples(BATCH, CONTEXT, GAMMA), min_size=1, max_size=8))
def test_arrays_and_numbers_agree(form: Any, points: list[tuple[int, int, int]]) -> None:
    columns = np.array(points, dtype=float).T
    for predict in (form.t_drafter, form.t_verify):
        alone = [float(predict(*point)) for point in points]
        assert predict(*columns) == pytest.approx(alone, rel=1e-12)
    assert form.t_target(*columns[:2]) == pytest.approx([float(form.t_target(b, s)) for b, s, _ in points], rel=1e-12)


@given(paper_forms(), BATCH, CONTEXT, GAMMA)
def test_the_paper_form_is_its_formula(f: PaperForm, b: int, s: int, g: int) -> None:
    bandwidth, compute = (
        f.bandwidth_bytes_per_s,
        (b * f.dense_flop + b * s * f.attention_flop) / f.throughput_flop_per_s,
    )
    target = max((f.target_bytes + f.kv_bytes * b * s) / bandwidth, compute)
    drafter = max((f.drafter_bytes_factor * f.drafter_bytes + f.kv_bytes * b * s) / bandwidth, compute)
    memory = (f.target_bytes + f.kv_bytes * b * s * (1 + f.verify_kv_growth * g)) / bandwidth
    verify = max(memory, (g + 1) * compute)
    tt = target + f.target_overhead_us * b * 1e-6 + f.communication_s
    td = drafter + f.drafter_overhead_us * b * 1e-6 + f.communication_s
    tv = verify + f.verify_overhead_us * b * 1e-6 + f.communication_s
    assert float(f.t_target(b, s)) == pytest.approx(tt, rel=1e-12)
    assert float(f.t_drafter(b, s, g)) == pytest.approx(td, rel=1e-12)
    assert float(f.t_verify(b, s, g)) == pytest.approx(tv, rel=1e-12)
    assert float(speedup(f, b, s, g, 3.5)) == pytest.approx(3.5 / (g * td / tt + tv / tt), rel=1e-9)


@given(ANY_FORM, CONTEXT, GAMMA, st.floats(1.0, 12.0))
def test_the_boundary_divides(form: Any, context: int, gamma: int, accepted: float) -> None:
    found = boundary_batch(form, context, gamma, accepted, limit=200.0)
    assert 0.0 <= found <= 200.0
    if found > 0:
        assert speedup(form, found, context, gamma, accepted) >= 1.05
    if 0 < found < 200:
        assert speedup(form, found + 1e-3, context, gamma, accepted) < 1.06


@settings(deadline=None)
@given(ANY_FORM, constants(), BATCH, CONTEXT, GAMMA)
def test_a_file_gives_back_what_was_written(form: Any, of: ModelConstants, b: int, s: int, g: int) -> None:
    made = Calibration(form, fingerprint_of(of, "Device A"), {"cost": 1.5})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.json"
        write_calibration(made, path)
        json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
        read = read_calibration(path)
    assert (read.fingerprint, read.report) == (made.fingerprint, made.report)
    assert float(read.form.t_verify(b, s, g)) == pytest.approx(float(form.t_verify(b, s, g)), rel=1e-9)
    assert float(read.form.t_drafter(b, s, g)) == pytest.approx(float(form.t_drafter(b, s, g)), rel=1e-9)


class Told:
    """A predictor that says what it is told."""

    def __init__(self) -> None:
        self.next, self.is_known = Estimate(1.0, 0.0), True

    def estimate(self, view: View) -> Estimate:
        return self.next

    def seconds(self, view: View) -> tuple[float, float]:
        return 0.01, 0.05 / self.next.speedup

    def known(self, estimate: Estimate, spread_limit: float) -> bool:
        return self.is_known and estimate.spread <= spread_limit


VIEW = View(8, 1000.0, 7, 5.0)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=100), st.floats(1.0, 1.3), st.floats(0.0, 0.2), st.booleans())
def test_nothing_switches_inside_the_band(places: list[float], threshold: float, band: float, on: bool) -> None:
    told = Told()
    toggle = Toggle(ToggleConfig(threshold=threshold, band=band, switch_cost_s=0.0), told)
    told.next = Estimate(2.0 if on else 0.1, 0.0)
    assert toggle.decide(VIEW).speculate == on
    for place in places:
        inside = threshold - band + place * band
        assume(threshold - band <= inside < threshold)
        told.next = Estimate(inside, 0.0)
        decision = toggle.decide(VIEW)
        assert (decision.speculate, decision.switched) == (on, False)


@given(st.lists(st.floats(0.1, 4.0), max_size=200), st.floats(0.0, 0.05))
def test_a_switch_has_been_paid(speedups: list[float], cost: float) -> None:
    """What the other mode would have saved since the last switch is at least the cost of each switch."""
    told = Told()
    toggle = Toggle(ToggleConfig(switch_cost_s=cost), told)
    on, saved = False, 0.0
    for value in speedups:
        told.next = Estimate(value, 0.0)
        plain, cycle = told.seconds(VIEW)
        saved += max(0.0, cycle * (1 - value) if on else plain * (1 - 1 / value))
        decision = toggle.decide(VIEW)
        if decision.switched:
            assert saved >= cost * (1 - 1e-9)
            saved = 0.0
        on = decision.speculate


@given(st.lists(st.tuples(st.floats(0.1, 4.0), st.floats(0.0, 3.0)), max_size=300))
def test_no_speculation_without_a_model_but_short_probes(predictions: list[tuple[float, float]]) -> None:
    told, config = Told(), ToggleConfig(probe_cycles=3, probe_wait_steps=8)
    told.is_known = False
    unknown, refused, published = Toggle(config, told), Toggle(config, None, "no file"), PaperToggle(None)
    speculated = 0
    for value, spread in predictions:
        told.next = Estimate(value, spread)
        decision = unknown.decide(VIEW)
        assert decision.speculate == (decision.state == "probing")
        speculated += decision.speculate
        assert not refused.decide(VIEW).speculate
        assert not published.decide(VIEW).speculate
    # Probe n comes no sooner than 8 * (2^n - 1) steps after the start.
    assert speculated <= 3 * math.log2(len(predictions) / 8 + 2)


@given(forms(), st.lists(st.integers(0, 80), max_size=60), st.floats(1.0, 9.0), GAMMA)
def test_the_published_toggle_never_goes_back(
    form: PhysicalForm, batches: list[int], gained: float, gamma: int
) -> None:
    toggle = PaperToggle(form)
    toggle.start_rollout(gained, gamma)
    found = [toggle.decide(View(batch, 500.0, gamma, 1.0)).speculate for batch in batches]
    assert found == sorted(found)
    if any(found):
        first = found.index(True)
        assert max(batches[:first]) > 32
        assert float(speedup(form, batches[first], 500, gamma, gained)) >= 1.05


@given(forms(), BATCH, CONTEXT, GAMMA, st.floats(1.0, 12.0))
def test_a_fresh_toggle_follows_the_model(form: PhysicalForm, b: int, s: int, g: int, gained: float) -> None:
    decision = Toggle(ToggleConfig(switch_cost_s=0.0), FilePredictor(form)).decide(View(b, s, g, gained))
    assert decision.speculate == (float(speedup(form, b, s, g, gained)) >= 1.05)


@settings(deadline=None, max_examples=5)
@given(forms(), st.integers(0, 2**32 - 1), st.floats(0.01, 100.0))
def test_outliers_do_not_move_the_online_model(truth: PhysicalForm, seed: int, factor: float) -> None:
    """Two runs of the same steps, in one of which a fifth take another time: the predictions agree."""
    assume(not 0.5 < factor < 2)
    random = np.random.default_rng(seed)
    clean, dirty = (OnlineRoofline.unknown(truth.constants, truth.traits) for _ in range(2))
    for step in range(100):
        batch, context = (1, 4, 16, 48)[step % 4], 1000.0
        times = (truth.t_target(batch, context), truth.t_drafter(batch, context, 5), truth.t_verify(batch, context, 5))
        odd = step // 4 % 5 == 3
        for mode, seconds in zip(MODES, times, strict=True):
            measured = float(seconds) * math.exp(random.normal(0, 0.02))
            clean.observe(mode, batch, context, 5, measured)
            dirty.observe(mode, batch, context, 5, measured * (factor if odd else 1.0))
    for batch in (1, 4, 16, 48):
        for mode in MODES:
            ratio = dirty.time(mode, batch, 1000, 5) / clean.time(mode, batch, 1000, 5)
            assert abs(math.log(ratio)) < 0.06, (mode, batch)


ODD = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(1e-7, 1e3))


@settings(deadline=None, max_examples=30)
@given(
    constants(),
    st.lists(st.tuples(st.sampled_from([TARGET, DRAFTER, VERIFY]), BATCH, CONTEXT, GAMMA, ODD), max_size=25),
)
def test_the_online_model_survives_any_times(of: ModelConstants, steps: list[tuple[str, int, int, int, float]]) -> None:
    online = OnlineRoofline.unknown(of)
    for step in steps:
        online.observe(*step)
        estimate = online.estimate(7, 800, 5, 3.0)
        assert math.isfinite(estimate.speedup)
        assert estimate.speedup > 0
        assert math.isfinite(estimate.spread)
        for p, value in zip(online.form.table, online.form.log_values, strict=True):
            assert math.log(p.low) - 1e-9 <= value <= math.log(p.high) + 1e-9


@given(st.lists(st.integers(1, 16).flatmap(lambda g: st.tuples(st.just(g), st.integers(0, g))), max_size=200))
def test_an_acceptance_curve_is_one(cycles: list[tuple[int, int]]) -> None:
    curve = AcceptanceCurve()
    for gamma, accepted in cycles:
        curve.observe(gamma, accepted)
    shares = curve.shares()
    assert ((shares >= 0) & (shares <= 1)).all()
    lengths = [curve.tokens_per_cycle(g) for g in range(1, 17)]
    assert lengths == sorted(lengths)
    assert all(1 <= length <= g + 1 + 1e-9 for g, length in enumerate(lengths, 1))
