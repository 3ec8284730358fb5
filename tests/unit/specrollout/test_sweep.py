"""Reading sweeps: what a fit could not use is refused in one line that names the rows."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from april.errors import UsageError
from specrollout.roofline.sweep import DRAFTER, TARGET, VERIFY, name_rows, read_sweep

Edit = Callable[[list[dict[str, str]]], list[dict[str, str]]]


def edited(source: Path, target: Path, edit: Edit) -> Path:
    with source.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = list(rows[0])
    rows = edit(rows)
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, [n for n in names if n in rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    return target


def change(index: int, **values: str) -> Edit:
    return lambda rows: [{**r, **values} if i == index else r for i, r in enumerate(rows)]


def keep(predicate: Callable[[dict[str, str]], bool]) -> Edit:
    return lambda rows: [r for r in rows if predicate(r)]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change(5, median_ms="nan"), "row 7: a time that is no positive number"),
        (change(5, median_ms=""), "row 7: a time that is no positive number"),
        (change(9, mean_ms="-3.0"), "row 11: a time that is no positive number"),
        (change(9, std_ms="-1"), "row 11: a time that is no positive number"),
        (change(2, min_ms="inf"), "row 4: a time that is no positive number"),
        (change(3, mode="target_prefill"), "row 5: a mode that is none of target_decode"),
        (change(3, batch="2.5"), "row 5: a value that is no whole number"),
        (change(3, gamma="7"), "row 5: a draft length that does not fit the mode"),
        (change(8, batch="1", seq="256"), "row 10: a point that an earlier row has measured"),
        (keep(lambda r: r["mode"] != VERIFY), f"no rows of mode {VERIFY} at gamma 3"),
        (keep(lambda r: r["mode"] != DRAFTER or r["gamma"] != "7"), f"no rows of mode {DRAFTER} at gamma 7"),
        (keep(lambda r: r["mode"] != TARGET), f"no rows of mode {TARGET}"),
        (keep(lambda r: r["mode"] == TARGET), f"no rows of mode {DRAFTER}"),
        (keep(lambda r: r["batch"] == "8"), "has one batch only, 8; a fit needs two or more"),
        (keep(lambda r: r["mode"] != VERIFY or r["batch"] == "4"), f"mode {VERIFY} at gamma 3 has one batch only, 4"),
        (lambda rows: [{k: v for k, v in r.items() if k != "median_ms"} for r in rows], "no column median_ms"),
        (change(0, model="Other-7B"), "holds 2 models"),
        (lambda rows: [{**r, "median_ms": "nan"} for r in rows], "rows 2, 3, 4, 5, 6 and 591 more"),
    ],
)
def test_a_sweep_that_cannot_be_used(data: Path, tmp_path: Path, edit: Edit, message: str) -> None:
    path = edited(data / "sweep_a100_tp1_qwen257b.csv", tmp_path / "sweep.csv", edit)
    with pytest.raises(UsageError) as caught:
        read_sweep(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"model,batch\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_sweep(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "sweep.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"sweep\.csv"):
        read_sweep(path)


def test_batch_0_and_unused_modes_are_left_out(data: Path) -> None:
    sweep = read_sweep(data / "sweep_a100_tp1_qwen257b.csv")
    assert sweep.gammas == [3, 7, 11, 15]
    assert min(row.batch for row in sweep.rows) == 1
    assert {row.mode for row in sweep.rows} == {TARGET, DRAFTER, VERIFY}
    assert [sweep.cycles(g).seconds.size for g in sweep.gammas] == [45, 45, 44, 44]


def test_rows_are_named_shortly() -> None:
    assert [name_rows(range(2, 2 + n)) for n in (1, 2, 7)] == ["row 2", "rows 2, 3", "rows 2, 3, 4, 5, 6 and 2 more"]
