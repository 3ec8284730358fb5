"""PyTorch's tensors over a region on a CPU."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from april.memory import MemorySaver

torch = pytest.importorskip("torch")
from april.memory.tensors import capture  # noqa: E402


@pytest.fixture
def saver(tmp_path: Path) -> MemorySaver:
    return MemorySaver(capture=capture, backup_folder=str(tmp_path))


LIKE = torch.arange(6, dtype=torch.int16).view(2, 3)
FACTORIES: dict[str, Callable[[], torch.Tensor]] = {
    "zeros": lambda: torch.zeros(3, 4, dtype=torch.bfloat16),
    "zeros of a size": lambda: torch.zeros(size=(3, 4)),
    "ones": lambda: torch.ones((2, 2), device="cpu"),
    "full": lambda: torch.full((2, 3), 2.5),
    "full of a bool": lambda: torch.full((2,), fill_value=True),
    "zeros_like": lambda: torch.zeros_like(LIKE),
    "ones_like with a type": lambda: torch.ones_like(LIKE, dtype=torch.float64),
    "full_like": lambda: torch.full_like(LIKE, 9),
    "new_zeros": lambda: LIKE.new_zeros(5),
    "new_ones": lambda: LIKE.new_ones((5, 1)),
    "new_full": lambda: LIKE.new_full((2,), 4),
    "tensor": lambda: torch.tensor([1, 2, 3]),
    "arange": lambda: torch.arange(10, dtype=torch.float32),
    "eye": lambda: torch.eye(4),
    "linspace": lambda: torch.linspace(0, 1, 7),
    "clone": lambda: LIKE.clone(),
    "to another type": lambda: LIKE.to(torch.float32),
    "float": lambda: LIKE.float(),
    "contiguous of a view": lambda: LIKE.t().contiguous(),
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "complex": lambda: torch.zeros(3, dtype=torch.complex64),
    "float8": lambda: torch.zeros(3, dtype=torch.float8_e4m3fn),
    "under a device": lambda: _under_device(),
    "in inference mode": lambda: _in_inference(),
}


def _under_device() -> torch.Tensor:
    with torch.device("cpu"):
        return torch.zeros(7)


def _in_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(7)


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_gives_what_it_gives_outside(saver: MemorySaver, name: str) -> None:
    wanted = FACTORIES[name]()
    with saver.region("weights"):
        got = FACTORIES[name]()
    assert saver.state(got.data_ptr()) == "active"
    assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    assert (got.requires_grad, got.is_inference()) == (wanted.requires_grad, wanted.is_inference())
    assert torch.equal(got, wanted)
    address = got.data_ptr()
    saver.pause()
    saver.resume()
    assert got.data_ptr() == address
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("name", ["empty", "empty_like", "empty_strided", "new_empty"])
def test_undefined_contents(saver: MemorySaver, name: str) -> None:
    with saver.region("kv_cache"):
        got = {
            "empty": lambda: torch.empty(3, 4),
            "empty_like": lambda: torch.empty_like(LIKE),
            "empty_strided": lambda: torch.empty_strided((3, 4), (1, 5)),
            "new_empty": lambda: LIKE.new_empty((2, 2)),
        }[name]()
    assert saver.state(got.data_ptr()) == "active"
    got.fill_(1)


def test_zeros_are_zero_where_memory_was_used_before(saver: MemorySaver) -> None:
    with saver.region("weights"):
        first = torch.ones(1000)
        address = first.data_ptr()
        del first
        second = torch.zeros(1000)
    assert second.data_ptr() == address
    assert not second.any()


def test_random_numbers_are_those_of_the_seed(saver: MemorySaver) -> None:
    torch.manual_seed(3)
    wanted = torch.randn(4, requires_grad=True)
    torch.manual_seed(3)
    with saver.region("weights"):
        got = torch.randn(4, requires_grad=True)
    assert torch.equal(got, wanted)
    assert got.is_leaf
    assert got.requires_grad
    assert saver.state(got.data_ptr()) == "active"


def test_what_stays_outside(saver: MemorySaver) -> None:
    kept = torch.zeros(4)
    with saver.region("weights"):
        outside = [
            torch.zeros(0, 3),
            torch.zeros(3, device="meta"),
            torch.zeros(3, layout=torch.sparse_coo),
            kept.to(torch.float32),
            kept.contiguous(),
            torch.ones(4, out=kept),
        ]
        with saver.disable():
            outside.append(torch.zeros(5))
    outside.append(torch.zeros(6))
    assert saver.stats().total.blocks == 0
    assert len(outside) == 8


def test_a_model_trains_over_a_region_and_its_memory_is_freed_with_it(saver: MemorySaver) -> None:
    def train(inside: MemorySaver | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        with inside.region("training") if inside else torch.enable_grad():
            model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1))
            optimizer = torch.optim.Adam(model.parameters())
            for step in range(4):
                model(torch.full((8, 64), 0.1 * step)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if inside and step == 1:
                    assert inside.stats().tags["training"].blocks >= 3 * 6
                    inside.pause()
                    inside.resume()
        return [parameter.detach().clone() for parameter in model.parameters()]

    wanted, got = train(None), train(saver)
    assert all(torch.equal(one, other) for one, other in zip(wanted, got, strict=True))
    gc.collect()
    assert saver.stats().total.blocks == 0


def test_copies_are_independent(saver: MemorySaver) -> None:
    with saver.region("weights"):
        model = torch.nn.Linear(3, 3)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    saver.pause()
    for each in copies:
        assert all(torch.equal(each.state_dict()[name], value) for name, value in state.items())


def test_a_view_keeps_the_block(saver: MemorySaver) -> None:
    with saver.region("weights"):
        whole = torch.arange(100)
    part = whole[10:20]
    del whole
    gc.collect()
    assert saver.stats().total.blocks == 1
    assert part.tolist() == list(range(10, 20))
    del part
    gc.collect()
    assert saver.stats().total.blocks == 0
