"""Several Ray nodes on this machine: the share of each, and what of it the hosts and Ray are told."""

from __future__ import annotations

from argparse import Namespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from april.errors import UsageError
from april.launch.train import cluster, command, cpu, nodes, preflight


@given(st.integers(1, 64), st.integers(1, 64))
def test_devices_are_shared_out_evenly(devices: int, count: int) -> None:
    if devices < count:
        with pytest.raises(UsageError, match=f"--nodes {count}: trainer and engines have {devices} devices"):
            nodes.shares(devices, count)
        return
    found = nodes.shares(devices, count)
    assert len(found) == count
    assert sum(found) == devices
    assert found == sorted(found, reverse=True)
    assert max(found) - min(found) <= 1


@pytest.mark.parametrize(("colocate", "devices"), [(False, 6), (True, 4)])
def test_the_nodes_have_what_the_placement_groups_ask_for(colocate: bool, devices: int) -> None:
    args = Namespace(actor_num_nodes=2, actor_num_gpus_per_node=1, rollout_num_gpus=4, colocate=colocate)
    assert cluster._devices(args) == devices


@pytest.mark.parametrize(("device", "address", "says"), [("cuda", "", "on cuda"), ("cpu", "10.0.0.1:1", "RAY_ADDRESS")])
def test_only_a_cpu_without_a_cluster_is_several_nodes(
    device: str, address: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    command._check_nodes(1, device)
    with pytest.raises(UsageError, match=f"--nodes 2: .*{says}"):
        command._check_nodes(2, device)


def test_to_the_hosts_the_machine_is_one_node() -> None:
    assert dict(preflight.values(cpu.flags(3)))["--num-gpus-per-node"] == "6"
