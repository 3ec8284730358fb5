"""What this machine cannot run is said in one line: models, data, devices, clusters, flags."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from april.errors import UsageError
from april.hosts.slime import Slime
from april.launch.doctor.reading import device as accelerator
from april.launch.presets.catalog import Catalog
from april.launch.run import checkpoint, checks, known, ray_nodes
from april.launch.run.resolve import Launch, Places, Request, resolve

CATALOG = Catalog()
QWEN = CATALOG.get("models", "qwen3-4b").own["architecture"]


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Models and data as a run of Qwen3-4B wants them."""
    model(tmp_path, QWEN)
    data = tmp_path / "dapo-math-17k"
    data.mkdir()
    (data / "dapo-math-17k.jsonl").write_text('{"prompt": "1+1?", "label": "2"}\n')
    return tmp_path


def model(folder: Path, config: Mapping[str, Any], name: str = "Qwen3-4B") -> Path:
    made = folder / name
    made.mkdir(exist_ok=True)
    (made / "config.json").write_text(json.dumps(config))
    (made / "model.safetensors").touch()
    return made


def launch(
    folder: Path, *sets: str, hardware: str = "cpu", preset: str = "qwen3-4b-dapo-math", nodes: int = 1
) -> Launch:
    places = Places(str(folder), str(folder), str(folder / "out"), {})
    request = Request(
        preset, places, hardware=hardware, nodes=nodes, sets=("eval-interval=null", "eval-prompt-data=null", *sets)
    )
    return resolve(request, CATALOG)


def said(run: Launch, environ: Mapping[str, str] | None = None) -> list[str]:
    return list(checks.findings(run, {}, environ or {}, Path(run.flags["save"]).parent))  # type: ignore[arg-type]


def test_a_run_that_can_start(folders: Path) -> None:
    assert said(launch(folders)) == []


def test_missing_model_and_data_are_both_named(tmp_path: Path) -> None:
    model_said, data_said = said(launch(tmp_path))
    assert "Qwen3-4B: no such folder; hf download Qwen/Qwen3-4B --local-dir" in model_said
    assert "dapo-math-17k.jsonl: no such file; give the folder of the data by --data" in data_said


def test_a_checkpoint_of_another_model(folders: Path) -> None:
    model(folders, CATALOG.get("models", "qwen3-8b").own["architecture"])
    [line] = said(launch(folders))
    assert "is no qwen3-4b: " in line
    assert "hidden_size 4096 instead of 2560" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "config.json is no JSON"), ("[]", "config.json holds no object"), (None, "no config.json in it")],
)
def test_a_folder_that_is_no_model(folders: Path, text: str | None, says: str) -> None:
    path = folders / "Qwen3-4B" / "config.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert says in said(launch(folders))[0]


def test_a_folder_keeps_its_own_rounding(folders: Path) -> None:
    model(
        folders,
        {**QWEN, "rms_norm_eps": 9.999999974752427e-07, "rope_theta": None, "rope_parameters": {"rope_theta": 1e6}},
    )
    run = launch(folders)
    assert said(run) == []
    assert checks.agreed(run) == {"norm-epsilon": "9.999999974752427e-07"}
    with pytest.raises(UsageError, match="rms_norm_eps 1e-05 instead of 1e-06"):
        checkpoint.check(model(folders, {**QWEN, "rms_norm_eps": 1e-5}), QWEN, "qwen3-4b")


def test_wrong_keys_in_jsonl_and_parquet(folders: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    assert "has no 'question'; --input-key may be prompt, label" in said(launch(folders, "input-key=question"))[0]
    path = folders / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a"], "answer": ["b"]}), path)
    assert "no column 'label'; --label-key may be prompt, answer" in said(launch(folders, f"prompt-data={path}"))[0]
    assert said(launch(folders, f"prompt-data={path}", "label-key=answer")) == []
    path.write_text("no parquet")
    assert "data.parquet: no parquet file" in said(launch(folders, f"prompt-data={path}"))[0]


def test_evaluation_data_are_looked_for_too(folders: Path) -> None:
    [line] = said(launch(folders, "eval-interval=5", "eval-prompt-data=[aime, /nowhere/aime.jsonl]"))
    assert line.startswith("--eval-prompt-data /nowhere/aime.jsonl: no such file;")


def on(monkeypatch: pytest.MonkeyPatch, name: str, gpus: int) -> None:
    """A machine with so many GPUs."""
    monkeypatch.setattr(
        accelerator, "read", lambda *args: accelerator.Accelerator(name, "a test", gpus=("gfx942",) * gpus)
    )


@pytest.mark.parametrize(
    ("hardware", "name", "gpus", "environ", "says"),
    [
        ("h100x8", "cpu", 0, {}, "wants 8 NVIDIA GPUs, there is cpu only"),
        ("h100x8", "cuda", 4, {}, "wants 8 GPUs, 4 are here"),
        ("mi300x-8", "rocm", 8, {"HIP_VISIBLE_DEVICES": "0,1"}, "wants 8 GPUs, 2 are here"),
        ("mi300x-8", "rocm", 8, {}, None),
        ("h100x8", "cuda", 8, {}, None),
    ],
)
def test_devices(
    hardware: str,
    name: str,
    gpus: int,
    environ: dict[str, str],
    says: str | None,
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on(monkeypatch, name, gpus)
    found = said(launch(folders, hardware=hardware), environ)
    assert (says is None and found == []) or (len(found) == 1 and str(says) in found[0])


def test_several_nodes_need_a_cluster_with_enough_of_them(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "cuda", 8)
    assert "this machine is one node of GPUs" in said(launch(folders, hardware="h100x8", nodes=2))[0]
    assert said(launch(folders, nodes=2)) == []
    monkeypatch.setattr(
        ray_nodes, "ask", lambda address: [ray_nodes.Node("10.0.0.1", 8, 64), ray_nodes.Node("10.0.0.2", 8, 4)]
    )
    run = launch(folders, hardware="h100x8", nodes=2)
    with pytest.raises(UsageError, match=r"2 node\(s\) with 8 GPUs") as error:
        checks._nodes(run, {"RAY_ADDRESS": "10.0.0.1:6379"})
    assert "10.0.0.2 (8 GPUs, 4 CPUs)" in str(error.value)
    checks._nodes(dataclasses.replace(run, nodes=1), {"RAY_ADDRESS": "10.0.0.1:6379"})


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_nodes, "LIMIT_S", 0.05)
    with pytest.raises(UsageError, match="no answer within"):
        ray_nodes.ask("127.0.0.1:1")


def test_a_full_disk(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.preflight, "DISK_BYTES", 1 << 60)
    assert "of disk are free" in said(launch(folders))[0]


def test_misspelt_flags(tmp_path: Path) -> None:
    utils = tmp_path / "slime" / "utils"
    utils.mkdir(parents=True)
    (utils / "arguments.py").write_text(
        'parser.add_argument("--rollout-batch-size", type=int)\nclass C:\n    log_x: bool\n'
    )
    host = Slime(tmp_path, "0")
    known.check(
        ["--rollout-batch-size", "--log-x", "--no-log-x", "--april-stop", "--run-dir", "--specrollout-eps"], host
    )
    known.check(["--sglang-mem-fraction-static", "--sglang-disable-radix-cache"], host)
    for flag, near in (
        ("--rolout-batch-size", "--rollout-batch-size"),
        ("--april-stopp", "--april-stop"),
        ("--sglang-mem-fraction-statik", "--sglang-mem-fraction-static"),
    ):
        with pytest.raises(UsageError, match=rf"unknown flag {flag} \(did you mean {near}\?\)"):
            known.check([flag], host)
