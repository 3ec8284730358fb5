"""Only processes of this machine are watched: a pid of another means nothing here."""

from __future__ import annotations

import pytest

from april.launch.train.watchdog import to_watch
from april.patches.core import Process
from april.patches.receipts import Receipt

REPORTED = [
    Receipt(Process.DRIVER, "n1", 1, frozenset()),
    Receipt(Process.ENGINE, "n1", 2, frozenset()),
    Receipt(Process.TRAIN_ACTOR, "n1", 3, frozenset()),
    Receipt(Process.ENGINE, "n2", 2, frozenset()),
    Receipt(Process.TRAIN_ACTOR, "n2", 4, frozenset()),
]


@pytest.mark.parametrize(("tolerate", "watched"), [(False, {2, 3}), (True, {3})])
def test_processes_of_this_machine_but_the_driver(tolerate: bool, watched: set[int]) -> None:
    found = to_watch(REPORTED, "n1", tolerate)
    assert {receipt.pid for receipt in found} == watched
    assert {receipt.machine for receipt in found} == {"n1"}
