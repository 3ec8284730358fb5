"""Adam's state made before the first step is the state that Adam makes at its first step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from april.patches.cpu import optimizer  # noqa: E402

pytestmark = pytest.mark.contract


def trained(kind: str, amsgrad: bool, begun: bool) -> tuple[list[list[float]], dict[str, object]]:
    """Weights after three steps, and the state then."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(5))]
    adam = getattr(torch.optim, kind)(weights, lr=0.1, amsgrad=amsgrad)
    if begun:
        optimizer.begin(adam)
    for _ in range(3):
        adam.zero_grad()
        sum((weight**3).sum() for weight in weights).backward()
        adam.step()
    return [weight.tolist() for weight in weights], adam.state_dict()


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_begun_adam_steps_as_any_other(kind: str, amsgrad: bool) -> None:
    (ours, state), (theirs, expected) = trained(kind, amsgrad, True), trained(kind, amsgrad, False)
    assert ours == theirs
    assert str(state) == str(expected)


def test_only_an_adam_without_state_is_begun() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    adam, sgd = torch.optim.AdamW([weight]), torch.optim.SGD([weight], momentum=0.9)
    for inner in (adam, sgd):
        assert optimizer.state_dict(lambda whole: len(whole.optimizer.state), SimpleNamespace(optimizer=inner)) == (
            1 if inner is adam else 0
        )
    adam.state[weight]["step"] += 7
    assert (
        optimizer.state_dict(
            lambda whole: whole.optimizer.state[weight]["step"].item(), SimpleNamespace(optimizer=adam)
        )
        == 7
    )
