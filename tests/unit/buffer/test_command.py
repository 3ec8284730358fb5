"""``april buffer``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fake_buffer import MAX_LEN, group
from fake_data import Sample

from april.buffer.codec import SampleCodec
from april.buffer.durable import DurableBuffer
from april.launch.cli import main


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint with a finished group of two responses, a partial and a prompt."""
    buffer = DurableBuffer(tmp_path / "live", SampleCodec(Sample), MAX_LEN)
    buffer.put([group(1, (5,), version=2), group(2, (7, 8), ended=True), group(3, (0,))])
    buffer.commit(4, {"clock": {"last": 2}})
    buffer.save(4, tmp_path / "saved")
    buffer.close()
    return tmp_path / "saved"


def test_show(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["buffer", "show", str(saved)]) == 0
    text = capsys.readouterr().out
    assert "groups   3: 1 finished, 1 partial, 1 prompts\ntokens   20\n" in text
    assert text.splitlines()[-3:] == [
        "                    1        1        15",
        "                    2        1         5",
        "                    -        1         0",
    ]
    assert main(["buffer", "show", str(saved), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["groups"], found["tokens"], found["rounds"]) == (3, 20, [4])
    assert found["state"] == {"clock": {"last": 2}}


def test_verify(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["buffer", "verify", str(saved)]) == 0
    assert capsys.readouterr().out == f"{saved} is sound: 3 groups\n"
    [path] = saved.glob("*.seg")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert main(["buffer", "verify", str(saved), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["sound"]
    assert len(found["faults"]) == 1


def test_export(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.parquet"
    assert main(["buffer", "export", str(saved), str(out)]) == 0
    assert capsys.readouterr().out == f"4 responses written to {out}\n"
    rows = pq.read_table(out).to_pylist()
    assert [(row["group"], row["state"], row["response_length"]) for row in rows] == [
        (2, "completed", 7),
        (2, "completed", 8),
        (1, "aborted", 5),
        (3, "pending", 0),
    ]
    partial = rows[2]
    assert partial["tokens"] == list(range(1, 8))
    assert partial["legs"] == [{"policy_version": 2, "start": 0, "length": 5, "rollout_id": 2}]
    assert (partial["versions"], partial["text"], partial["reward"]) == ([2] * 5, "xxxxx", None)
    assert partial["log_probs"] == [-0.1 * number for number in range(5)]
    assert main(["buffer", "export", str(saved), str(out)]) == 2
    assert capsys.readouterr().err == f"april: error: {out} exists: give a new file\n"
    assert main(["buffer", "export", str(saved), str(tmp_path / "no" / "x")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live", "saved", "table.parquet"]


@pytest.mark.parametrize("command", [["show"], ["verify"], ["export"]])
def test_a_wrong_path_is_one_line(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["buffer", *command, str(tmp_path / "no"), *(["x.parquet"] if command == ["export"] else [])]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error == f"april: error: {tmp_path / 'no'} holds no buffer: there is no index.sqlite in it\n"


def test_a_foreign_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "index.sqlite").write_text("hello")
    assert main(["buffer", "show", str(tmp_path)]) == 1
    assert "is damaged or no buffer of ours" in capsys.readouterr().err


def test_help_is_quick() -> None:
    code = (
        "import sys; from april.launch.cli import main\n"
        "try: main(['buffer', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'ray', 'sglang', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    start = time.monotonic()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    assert time.monotonic() - start < 1
