"""The hooks over stand-ins of SGLang's objects; the real ones are in tests/e2e/test_speculation.py."""

from types import SimpleNamespace as Object

import pytest
import torch

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
