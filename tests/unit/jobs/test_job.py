"""What a job refuses, and what it derives."""

from __future__ import annotations

from typing import Any

import pytest

from april.errors import UsageError
from april.launch.jobs.render import render

from .jobs import job


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"name": ""}, "name is "),
        ({"name": "8b"}, "a letter"),
        ({"name": "a b"}, "name is a b"),
        ({"name": "x" * 48}, "at most 46"),
        ({"vendor": "cpu", "container": "docker"}, "container is docker"),
        ({"nodes": 0}, "nodes is 0"),
        ({"gpus_per_node": 0}, "gpus_per_node is 0"),
        ({"hardware": "h100 x8"}, "hardware is h100 x8"),
        ({"walltime": "a day"}, "walltime is a day"),
        ({"walltime": "4:00"}, "signal_s is 300"),
        ({"partition": "a;b"}, "partition is a;b"),
        ({"command": ()}, "command is empty"),
        ({"command": ("april", "train", "--run-dir=/x")}, "--run-dir=/x"),
        ({"command": ("april", "a\0b")}, "NUL"),
        ({"environment": {"A-B": "1"}}, "'A-B'"),
        ({"environment": {"RAY_ADDRESS": "x"}}, "RAY_ADDRESS"),
        ({"environment": {"A": "\udc80"}}, "no UTF-8"),
        ({"run_dir": "runs"}, "run_dir is runs"),
        ({"run_dir": "/a,b"}, "run_dir is /a,b"),
        ({"slime_dir": "slime"}, "slime_dir is slime"),
        ({"mounts": ("/a:/b:/c",)}, "mounts is /a:/b:/c"),
        ({"mounts": ("data",)}, "mounts is data"),
        ({"mounts": ("pvc:Claim:/a",)}, "pvc:Claim:/a"),
        ({"image": "a b"}, "image is a b"),
    ],
)
def test_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        job(**changes)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("pbs", {}, "kind is pbs"),
        ("slurm", {"image": ""}, "container none"),
        ("kubernetes", {"image": ""}, "image is empty"),
        ("kubernetes", {"partition": "Team.A"}, "partition is Team.A"),
        ("slurm", {"mounts": ("pvc:models:/models",)}, "pvc"),
    ],
)
def test_what_a_kind_refuses(kind: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        render(job(**changes), kind)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("24:00:00", 86400), ("2-3", 183600), ("2-3:30", 185400), ("1-0:0:1", None)],
)
def test_walltime(text: str, seconds: int | None) -> None:
    if seconds is None:
        with pytest.raises(UsageError):
            job(walltime=text)
    else:
        assert job(walltime=text).seconds == seconds


@pytest.mark.parametrize(
    ("flags", "resumes"),
    [
        (("--save", "/a", "--load", "/a/"), True),
        (("--save=/a", "--load=/a"), True),
        (("--save", "/a", "--load", "/b"), False),
        (("--save", "/a"), False),
        ((), False),
    ],
)
def test_only_a_run_that_resumes_is_queued_again(flags: tuple[str, ...], resumes: bool) -> None:
    made = job(command=("april", "train", *flags))
    assert made.resumes is resumes
    assert ("#SBATCH --requeue\n" in render(made, "slurm")) is resumes
    assert ("trap 'again=1" in render(made, "slurm")) is resumes
    assert ("backoffLimit: 3" in render(made, "kubernetes")) is resumes
