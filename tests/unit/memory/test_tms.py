"""torch_memory_saver's surface, and who is put in its place. Each in a process of its own: imports are the point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from april.errors import UsageError
from april.memory import install

torch = pytest.importorskip("torch")
pytest.importorskip("torch_memory_saver")

PLACED = "from april.memory.install import install\nassert install('auto', 'cpu') == 'april'\n"
SURFACE = PLACED + "import torch\nfrom torch_memory_saver import torch_memory_saver as tms\n"


def python(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_it_is_put_in_place_without_torch() -> None:
    python(
        PLACED + "import sys, os, importlib.util\nassert 'torch' not in sys.modules\n"
        "import torch_memory_saver as m\nassert m.configure_subprocess and m.TorchMemorySaver\n"
        "assert importlib.util.find_spec('torch_memory_saver').origin == m.__file__\n"
        "assert install('april', 'cpu') == 'april' and sys.modules['torch_memory_saver'] is m\n"
        "with m.configure_subprocess(): assert 'LD_PRELOAD' not in os.environ\n"
    )


def test_hosts_find_a_library_to_preload_and_it_harms_nobody() -> None:
    """slime and miles look beside the package, put what they find into LD_PRELOAD, and stop where there is nothing."""
    found = python(
        PLACED + "import os, torch_memory_saver as m\n"
        "print(os.path.join(os.path.dirname(os.path.dirname(m.__file__)),"
        " 'torch_memory_saver_hook_mode_preload.abi3.so'))"
    ).strip()
    assert Path(found).is_file()
    done = subprocess.run(["/bin/echo", "hi"], capture_output=True, text=True, env={"LD_PRELOAD": found})
    assert (done.stdout, done.stderr) == ("hi\n", "")


def test_regions_pause_and_backups() -> None:
    python(
        SURFACE + "assert tms._impl is None and tms.enabled\n"
        "with tms.region(tag='a', enable_cpu_backup=True): x = torch.arange(1000.)\n"
        "with tms.region(tag='b'): y = torch.ones(1000)\n"
        "with tms.region():\n    with tms.disable(): z = torch.ones(7)\n"
        "address = x.data_ptr()\ntms.pause('a'); tms.pause('b'); tms.pause('a'); tms.pause('cuda_graph')\n"
        "kept = tms.get_cpu_backup(x[10:20])\nassert kept.tolist() == list(range(10, 20))\n"
        "assert tms.get_cpu_backup(x, zero_copy=True).shape == x.shape\n"
        "assert tms.get_cpu_backup(z) is None and z.sum() == 7\n"
        "try: tms.get_cpu_backup(y)\nexcept Exception as error: assert 'without a backup' in str(error)\n"
        "else: raise SystemExit('nothing raised')\n"
        "tms.resume()\nassert x.data_ptr() == address and x.sum() == 999 * 500\n"
        "assert tms.get_cpu_backup(x) is None and kept.sum() == 145\n"
        "assert tms.saver.dirty('b') and not tms.saver.dirty('a')\n"
    )


def test_settings() -> None:
    python(
        SURFACE + "import tempfile, os\nd = tempfile.mkdtemp()\ntms.hook_mode = 'torch'\n"
        "tms.set_disk_backup_dir(d + '/deep/er')\nassert os.path.isdir(d + '/deep/er')\n"
        "with tms.region('w', enable_disk_backup=True): x = torch.ones(100)\n"
        "with tms.region('v', enable_cpu_backup=True, cpu_backup_backend='mmap'): y = torch.ones(100)\n"
        "with tms.region('p', enable_cpu_backup=True, cpu_backup_backend='pinned'): z = torch.ones(100)\n"
        "tms.retain_cpu_backup = True\ntms.pause(); tms.resume()\nassert tms.retain_cpu_backup\n"
        "assert tms.get_cpu_backup(x).sum() == tms.get_cpu_backup(y).sum() == z.sum() == 100\n"
        "tms.memory_margin_bytes = 1 << 60\nassert tms.memory_margin_bytes == 1 << 60\n"
        "from april.memory import MemoryFault\n"
        "try:\n    with tms.region('w'): torch.ones(1 << 22)\n"
        "except MemoryFault as fault: assert 'margin' in str(fault)\n"
        "else: raise SystemExit('nothing raised')\n"
    )


@pytest.mark.parametrize(
    "flags",
    [
        "enable_cpu_backup=True, enable_disk_backup=True",
        "cpu_backup_backend='mmap'",
        "enable_cpu_backup=True, cpu_backup_backend='tape'",
    ],
)
def test_flags_that_exclude_each_other(flags: str) -> None:
    python(
        SURFACE + f"from april.errors import UsageError\ntry:\n    with tms.region('w', {flags}): pass\n"
        "except UsageError: pass\nelse: raise SystemExit('nothing raised')\n"
    )


def test_there_are_no_graphs_on_a_cpu() -> None:
    python(
        SURFACE + "try:\n    with tms.cuda_graph(cuda_graph=None, tag='cuda_graph'): pass\n"
        "except Exception as error: assert '--disable-cuda-graph' in str(error)\n"
        "else: raise SystemExit('nothing raised')\n"
    )


def test_tracking_is_switched_as_the_hosts_do_it() -> None:
    """slime around DeepEP's buffers; miles without asking what was set before."""
    python(
        SURFACE + "tms.pause()\ncdll = tms._impl._binary_wrapper.cdll\n"
        "assert not cdll.tms_get_interesting_region()\n"
        "cdll.tms_set_interesting_region(False); cdll.tms_set_interesting_region(True)\n"
        "assert not cdll.tms_get_interesting_region()\n"
        "with tms.region('w'):\n"
        "    before = cdll.tms_get_interesting_region()\n    cdll.tms_set_interesting_region(False)\n"
        "    outside = torch.ones(9)\n    cdll.tms_set_interesting_region(before)\n    inside = torch.ones(9)\n"
        "assert tms.saver.state(outside.data_ptr()) is None and tms.saver.state(inside.data_ptr()) == 'active'\n"
        "assert tms.saver.current is None\n"
    )


def test_a_process_tracked_as_a_whole() -> None:
    """slime's and miles' --offload-train: TMS_INIT_ENABLE in the worker's environment."""
    python(
        PLACED
        + "import sys, torch_memory_saver\nassert 'torch' not in sys.modules, 'not before its user does'\n"
        + SURFACE
        + "big = torch.ones(1 << 16)\nsmall = torch.ones(10)\n"
        "with tms.disable(): out = torch.ones(1 << 16)\n"
        "with tms.region('grads'): grads = torch.ones(1 << 16)\n"
        "tms.pause()\nassert small.sum() == 10 and out.sum() == 1 << 16\n"
        "assert tms.get_cpu_backup(big).sum() == 1 << 16\ntms.resume()\nassert big.sum() == 1 << 16\n"
        "assert {'default', 'grads'} == set(tms.saver.stats().tags) and tms.saver.dirty('grads')\n",
        TMS_INIT_ENABLE="1",
        TMS_INIT_ENABLE_CPU_BACKUP="1",
    )


def test_names_bound_before_are_bound_to_ours() -> None:
    """SGLang's adapter binds the object when it is imported."""
    python(
        "import sys, types\nimport torch_memory_saver\nfrom torch_memory_saver import torch_memory_saver as theirs\n"
        "user = types.ModuleType('user')\nuser.package, user.one = torch_memory_saver, theirs\n"
        "sys.modules['user'] = user\n"
        "from april.memory.install import install\nassert install('april', 'cpu') == 'april'\n"
        "from april.memory.tms import torch_memory_saver as ours\n"
        "assert user.one is ours and user.package is sys.modules['torch_memory_saver'] and theirs is ours\n"
    )


def test_one_in_use_is_not_replaced() -> None:
    python(
        "import torch_memory_saver\ntorch_memory_saver.torch_memory_saver._impl = object()\n"
        "from april.memory.install import install\nfrom april.errors import UsageError\n"
        "try: install('april', 'cpu')\nexcept UsageError as error: assert 'in use' in str(error)\n"
        "else: raise SystemExit('nothing raised')\n"
    )


def test_sglangs_adapter_over_it() -> None:
    python(
        PLACED + "from april.patches.cpu.torchvision_ops import arm\narm()\nimport torch\n"
        "from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter\n"
        "a = TorchMemorySaverAdapter.create(enable=True)\nassert a.enabled\n"
        "with a.configure_subprocess(): pass\n"
        "with a.region('weights', enable_cpu_backup=True): w = torch.ones(100)\n"
        "with a.region('kv_cache'): k = torch.zeros(100)\nwith a.disable(): d = torch.ones(3)\n"
        "a.pause('kv_cache'); a.pause('weights'); a.pause('cuda_graph')\n"
        "a.resume('cuda_graph'); a.resume('weights'); a.resume('kv_cache')\n"
        "assert w.sum() == 100 and k.shape == (100,)\n",
        SGLANG_USE_CPU_ENGINE="1",
    )


def test_a_fork_makes_its_own() -> None:
    """SGLang's scheduler is a fork of the engine on a CPU."""
    python(
        SURFACE + "import os\nwith tms.region('w', enable_cpu_backup=True): x = torch.ones(100)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with tms.region('w', enable_cpu_backup=True): y = torch.ones(100)\n"
        "    tms.pause(); tms.resume(); del x\n"
        "    os._exit(0 if y.sum() == 100 and tms.saver.stats().total.blocks == 1 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\ntms.pause(); tms.resume()\nassert x.sum() == 100\n"
    )


@pytest.mark.parametrize(
    ("libraries", "device", "major", "chosen"),
    [
        ([], "cuda", 12, "april"),
        (["torch_memory_saver_hook_mode_preload_cu12.abi3.so"], "cuda", 12, "tms"),
        (["torch_memory_saver_hook_mode_preload_cu12.abi3.so"], "cuda", 13, "april"),
        (["torch_memory_saver_hook_mode_preload_cu12.abi3.so"], "cuda", None, "tms"),
        (["torch_memory_saver_hook_mode_preload_cu12.abi3.so"], "rocm", None, "april"),
        (["torch_memory_saver_hook_mode_preload.abi3.so"], "rocm", None, "april"),
        (["torch_memory_saver_hook_mode_preload.abi3.so=libamdhip64"], "rocm", None, "tms"),
        (["torch_memory_saver_hook_mode_preload_cu12.abi3.so"], "cpu", None, "april"),
    ],
)
def test_auto(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    libraries: list[str],
    device: str,
    major: int | None,
    chosen: str,
) -> None:
    package = tmp_path / "torch_memory_saver"
    package.mkdir()
    (package / "__init__.py").touch()
    for library in libraries:
        name, _, contents = library.partition("=")
        (tmp_path / name).write_text(contents)
    monkeypatch.delitem(sys.modules, "torch_memory_saver", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert install.choose("auto", device, major) == chosen
    assert install.choose("april", device, major) == "april"
    if chosen == "april":
        with pytest.raises(UsageError, match="has no library"):
            install.choose("tms", device, major)


@pytest.mark.parametrize(("backend", "device"), [("cuda", "cpu"), ("auto", "tpu")])
def test_unknown_names(backend: str, device: str) -> None:
    with pytest.raises(UsageError, match="--memory-backend"):
        install.choose(backend, device)
