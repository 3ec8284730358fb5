"""The hooks over stand-ins of SGLang's objects; the real ones are in tests/e2e/test_speculation.py."""

from types import SimpleNamespace as Object

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specrollout import hooks


class Worker:
    def __init__(self) -> None:
        self.lost: list[str] = []
        self.asked: list[object] = []

    def weights_changed(self, path: str) -> None:
        self.lost.append(path)

    def drafter_lost(self, reason: str) -> None:
        self.lost.append(reason)

    def report(self) -> dict[str, object]:
        return {"cycles": 3}

    def set_state(self, asked: object) -> str | None:
        self.asked.append(asked)
        return None if isinstance(asked, dict) else "an object is expected"


def request(
    verify: int = 1, histogram: list[int] | None = None, finished: bool = False, retracted: bool = False
) -> Object:
    made = Object(spec_verify_ct=verify, spec_correct_drafts_histogram=histogram or [], is_retracted=retracted)
    made.finished = lambda: finished
    return made


def test_slots_are_written_request_by_request():
    table = torch.zeros(3, 8, dtype=torch.int32)
    start, end = torch.tensor([2, 0]), torch.tensor([4, 3])
    hooks.assign_slots(
        lambda *_: pytest.fail("a CPU has no Triton"), torch.tensor([2, 0]), table, start, end, torch.arange(1, 6), 2
    )
    assert table.tolist() == [[3, 4, 5, 0, 0, 0, 0, 0], [0] * 8, [0, 0, 1, 2, 0, 0, 0, 0]]


@pytest.mark.parametrize("fails", [False, True])
def test_every_update_marks_the_drafter_even_one_that_fails_halfway(fails: bool):
    def update_weights_from_tensor(self: object) -> str:
        if fails:
            raise RuntimeError("half of the weights are there")
        return "updated"

    runner = Object(_quant_self=(worker := Worker()))
    if fails:
        with pytest.raises(RuntimeError):
            hooks.weights_updated(update_weights_from_tensor, runner)
    else:
        assert hooks.weights_updated(update_weights_from_tensor, runner) == "updated"
    assert worker.lost == ["tensor"]


def test_a_runner_that_does_not_speculate_is_left_alone():
    assert hooks.weights_updated(lambda self: 7, Object()) == 7


def test_plain_steps_leave_no_trace_in_a_requests_counts():
    processor = Object(server_args=Object(speculative_num_draft_tokens=5))
    plain, done = request(verify=4, histogram=[2, 1]), request(verify=9, histogram=[9], finished=True)
    batch = Object(reqs=[plain, done])

    def original(self: object, result: object, batch: Object) -> list[list[int]]:
        plain.spec_verify_ct += 1
        plain.spec_correct_drafts_histogram[0] += 1
        return [[1], [2]]

    assert hooks.count_requests(original, processor, Object(speculative_num_draft_tokens=1), batch) == [[1], [2]]
    assert plain.spec_verify_ct == 4
    assert plain.spec_correct_drafts_histogram[:2] == [2, 1]
    assert (done.spec_verify_ct, done.spec_correct_drafts_histogram) == (9, [9])


def test_meta_info_counts_the_drafts_of_each_cycle():
    processor = Object(server_args=Object(speculative_num_draft_tokens=5))
    one = request(verify=0)
    for width, accepted in ((3, 2), (5, 1), (1, 0)):

        def original(self: object, result: object, batch: Object, accepted: int = accepted) -> None:
            one.spec_verify_ct += 1
            one.spec_correct_drafts_histogram += [0] * (accepted + 1 - len(one.spec_correct_drafts_histogram))
            one.spec_correct_drafts_histogram[accepted] += 1

        hooks.count_requests(original, processor, Object(speculative_num_draft_tokens=width), Object(reqs=[one]))
    meta: dict[str, object] = {}
    received = Object(
        spec_verify_ct=[one.spec_verify_ct],
        spec_num_correct_drafts=[3],
        spec_correct_drafts_histogram=[one.spec_correct_drafts_histogram],
    )
    hooks.meta_info(lambda *_: None, processor, meta, received, 0)
    assert meta["spec_num_proposed_drafts"] == 2 + 4
    assert meta["spec_accept_rate"] == 0.5
    assert meta["spec_accept_length"] == 2.5
    assert meta["spec_accept_histogram"] == [0, 1, 1, 0, 0]


def test_state_goes_to_the_worker_alone():
    scheduler = Object(tp_worker=Object(model_runner=Object(_quant_self=(worker := Worker()))))
    answer = hooks.get_state(lambda self, request: Object(internal_state={"a": 1}), scheduler, None)
    assert answer.internal_state == {"a": 1, "specrollout": {"cycles": 3}}
    others = hooks.set_state(
        lambda self, request: "upstream", scheduler, Object(server_args={"pp_max_micro_batch_size": 8})
    )
    assert others == "upstream"
    assert worker.asked == []


class Response:
    """As SGLang's Req, where it decides that a response has ended."""

    def __init__(self, tokens: list[int], limit: int, stops: set[int], aborted: bool = False) -> None:
        self.output_ids = tokens
        self.sampling_params = Object(max_new_tokens=limit)
        self.stops = stops
        self.to_finish = "abort" if aborted else None
        self.finished_reason: str | None = None
        self.finished_len: int | None = None

    def finished(self) -> bool:
        return self.finished_reason is not None

    def upstream(self, new: int = 1) -> None:
        limit = self.sampling_params.max_new_tokens
        if self.to_finish:
            self.finished_reason, self.to_finish = self.to_finish, None
        elif len(self.output_ids) >= limit:
            self.finished_reason, self.finished_len = "length", limit
        else:
            places = range(len(self.output_ids) - new, len(self.output_ids))
            found = next((place for place in places if self.output_ids[place] in self.stops), None)
            if found is not None:
                self.finished_reason, self.finished_len = "stop", found + 1


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.integers(1, 9),
    st.integers(1, 7),
    st.sampled_from([set(), {3}, {0, 3}]),
)
def test_a_run_ends_where_token_by_token_it_would_have_ended(
    tokens: list[int], limit: int, width: int, stops: set[int]
):
    one = Response([], limit, stops)
    for token in tokens:
        if not one.finished():
            one.output_ids = [*one.output_ids, token]
            one.upstream()
    run = Response([], limit, stops)
    for start in range(0, len(tokens), width):
        if not run.finished():
            new = tokens[start : start + width]
            run.output_ids = [*run.output_ids, *new]
            hooks.finish_state(Response.upstream, run, len(new))
    assert (run.finished_reason, run.finished_len) == (one.finished_reason, one.finished_len)
    assert run.sampling_params.max_new_tokens == limit


@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.integers(1, 9), st.sampled_from([set(), {3}]))
def test_an_abort_in_a_run_keeps_nothing_beyond_the_limit_or_a_stop(tokens: list[int], limit: int, stops: set[int]):
    response = Response(tokens, limit, stops, aborted=True)
    hooks.finish_state(Response.upstream, response, len(tokens))
    kept = tokens if response.finished_len is None else tokens[: response.finished_len]
    assert response.finished()
    assert len(kept) <= limit
    assert not stops.intersection(kept[:-1])
    assert response.to_finish is None
    if len(tokens) < limit and not stops.intersection(tokens):
        assert (response.finished_reason, kept) == ("abort", tokens)
