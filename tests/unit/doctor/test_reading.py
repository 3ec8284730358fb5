"""The readers, on folders that look like another machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from april.launch.doctor.facts import gather
from april.launch.doctor.numbers import GIB, KIB, MIB, public, release, size
from april.launch.doctor.reading import Unread, device, hosts, machine, number, packages, sockets, text


def put(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_versions_and_sizes() -> None:
    assert release("6.4.43482-0f2d60242") == (6, 4, 43482)
    assert release("0.5.15.post1") == (0, 5, 15)
    assert release("none") == ()
    assert public("2.13.0+cpu") == "2.13.0"
    assert [size(24 * GIB), size(64 * MIB), size(8 * KIB)] == ["24.0 GiB", "64 MiB", "8 KiB"]


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    assert isinstance(text(tmp_path / "absent"), Unread)
    put(tmp_path, {"max": "max\n", "one": "1\n"})
    assert number(tmp_path / "one") == 1
    assert isinstance(number(tmp_path / "max"), Unread)
    assert isinstance(number(tmp_path / "absent"), Unread)


def test_constants_of_torch_without_running_it() -> None:
    source = "raise SystemExit\n__version__ = '2.9.1+rocm6.4'\nhip: str = '6.4.43482'\n"
    assert packages.constants(source) == {"__version__": "2.9.1+rocm6.4", "hip": "6.4.43482"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"_cu12.abi3.so": b"libcuda.so.1", "_cu13.abi3.so": b"libcuda.so.1", ".abi3.so": b"libcuda.so.1"},
            packages.Saver(frozenset({12, 13})),
        ),
        ({".abi3.so": b"libamdhip64.so.7"}, packages.Saver(hip=True)),
        (
            {".abi3.so": b"libamdhip64.so.6 _ZN21ROCmHIPImplementation11rocm_malloc"},
            packages.Saver(hip=True, chunked=True),
        ),
        ({}, packages.Saver()),
    ],
)
def test_libraries_of_the_memory_saver(tmp_path: Path, files: dict[str, bytes], expected: packages.Saver) -> None:
    for suffix, content in files.items():
        (tmp_path / f"torch_memory_saver_hook_mode_torch{suffix}").write_bytes(b"\x7fELF\0" + content + b"\0")
    assert packages.saver_at(tmp_path) == expected


def test_targets_as_the_kernel_numbers_them() -> None:
    assert [device.gfx(number) for number in (90402, 90500, 90010, 110000)] == ["gfx942", "gfx950", "gfx90a", "gfx1100"]


def test_an_amd_machine(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    put(
        tmp_path,
        {
            f"{nodes}/0/properties": "simd_count 0\ngfx_target_version 0\n",
            f"{nodes}/1/properties": "simd_count 304\ngfx_target_version 90402\n",
            "dev/kfd": "",
            "dev/dri/renderD128": "",
            "opt/rocm/.info/version": "6.4.0-47\n",
            "sys/module/amdgpu/version": "6.12.12\n",
            "proc/cmdline": "iommu=pt\n",
            "proc/cpuinfo": "flags\t: fpu avx2 amx_bf16\n",
        },
    )
    found = device.read("rocm", "rocm", {}, tmp_path)
    assert (found.rocm, found.gpus, found.driver) == ("6.4.0", ("gfx942",), "6.12.12")
    assert found.kfd
    assert (found.render_nodes, found.render_denied) == (("renderD128",), ())
    assert found.cpu_flags == {"avx2", "amx_bf16"}
    assert device.read("rocm", "rocm", {"ROCM_PATH": str(tmp_path / "none")}, tmp_path).rocm is None


def test_an_nvidia_machine(tmp_path: Path) -> None:
    said = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U22)\n"
    put(
        tmp_path,
        {
            "proc/driver/nvidia/version": said,
            "proc/driver/nvidia/gpus/0000:3b:00.0/information": "Model: \t\t NVIDIA H200\nIRQ: 1\n",
        },
    )
    found = device.read("auto", "cuda", {}, tmp_path)
    assert (found.name, found.driver, found.gpus) == ("cuda", "570.86.15", ("NVIDIA H200",))
    assert isinstance(found.cpu_flags, Unread)


SOCKET = "   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1 0"


def test_ports_and_who_holds_them(tmp_path: Path) -> None:
    rows = [SOCKET.format(port=6379, state="0A", inode=11), SOCKET.format(port=40000, state="01", inode=12)]
    put(
        tmp_path,
        {
            "net/tcp": "\n".join(["  sl local_address", *rows]),
            "sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
            "77/comm": "redis-server\n",
            "78/comm": "raylet\n",
        },
    )
    (tmp_path / "77" / "fd").mkdir()
    os.symlink("socket:[11]", tmp_path / "77" / "fd" / "3")
    found = sockets.read({}, tmp_path)
    assert (found.ephemeral, found.in_use) == ((32768, 60999), 1)
    assert found.held == {6379: sockets.Holder(77, "redis-server")}
    assert found.rays == {78: "raylet"}


def test_ports_that_cannot_be_read(tmp_path: Path) -> None:
    found = sockets.read({}, tmp_path / "none")
    assert isinstance(found.ephemeral, Unread)
    assert isinstance(found.in_use, Unread)
    assert (found.held, found.rays) == ({}, {})


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "h:99999999"])
def test_a_ray_that_does_not_answer(address: str) -> None:
    assert sockets.read({"RAY_ADDRESS": address}).ray_answer


def test_a_ray_that_is_not_asked() -> None:
    found = sockets.read({"RAY_ADDRESS": "ray://head:10001"})
    assert (found.ray_address, found.ray_answer) == ("ray://head:10001", None)


@pytest.mark.parametrize(
    "files",
    [
        {"memory.max": f"{4 * GIB}", "memory.current": f"{1 * GIB}"},
        {"memory/memory.limit_in_bytes": f"{4 * GIB}", "memory/memory.usage_in_bytes": f"{1 * GIB}"},
    ],
)
def test_memory_within_a_cgroup(tmp_path: Path, files: dict[str, str]) -> None:
    put(tmp_path / "sys/fs/cgroup", files)
    put(tmp_path, {"proc/meminfo": f"MemTotal: {64 * MIB} kB\nMemAvailable: {32 * MIB} kB\n"})
    found = machine.read({}, tmp_path)
    assert (found.memory_total, found.memory_free, found.memory_limit) == (64 * GIB, 3 * GIB, 4 * GIB)
    assert isinstance(found.shm, Unread)
    assert isinstance(found.numa_nodes, Unread)
    assert isinstance(found.numa_balancing, Unread)


def test_a_place_that_does_not_exist_yet_is_measured_above_it(tmp_path: Path) -> None:
    found = machine.space(tmp_path / "a" / "b")
    assert isinstance(found, machine.Space)
    assert found.path == str(tmp_path / "a" / "b")
    assert found.writable


def test_a_host_is_looked_up_without_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "miles_root", lambda: None)
    assert hosts.read("slime", {"XDG_CACHE_HOME": str(tmp_path)}) == hosts.FoundHost()
    assert hosts.read("auto", {"XDG_CACHE_HOME": str(tmp_path)}) == hosts.FoundHost()
    assert "is no slime tree" in (hosts.read("auto", {"SLIME_DIR": str(tmp_path)}).fault or "")


def test_only_noted_variables_are_kept() -> None:
    noted = {"NCCL_GRAPH_REGISTER": "0", "RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES": "1"}
    found = gather({**noted, "WANDB_API_KEY": "secret"})
    assert found.environ == noted
