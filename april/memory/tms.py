"""The Python surface of torch_memory_saver over our saver, so that SGLang's adapter and the hosts use it unchanged.

``install.py`` puts it in place of that package. Imports PyTorch when it is used first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from april.errors import AprilError, UsageError
from april.memory import kinds, report
from april.memory.kinds import Keep
from april.memory.saver import MemorySaver

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT = "default"
BACKENDS = {"pinned": Keep.PINNED, "mmap": Keep.MMAP}
WHOLE_PROCESS_LEAST = 64 << 10
"""Smaller tensors of a process that is tracked as a whole stay outside: counters, random states and the like are host
memory on a GPU, and are touched while everything else is paused."""


class TorchMemorySaver:
    """One per process, as ``torch_memory_saver``. Made for real by its first use; a fork makes its own."""

    def __init__(self) -> None:
        self._impl: Impl | None = None
        self._hook_mode = "preload"
        self._folder: str | None = None

    def _made(self) -> Impl:
        if self._impl is None or self._impl.process != os.getpid():
            self._impl = Impl(self._folder)
        return self._impl

    @property
    def saver(self) -> MemorySaver:
        """The saver behind it: statistics, compaction, dirty tags."""
        return self._made().saver

    @contextlib.contextmanager
    def region(
        self,
        tag: str = DEFAULT,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """What is allocated on the device in the body is paused and resumed by ``tag``."""
        impl = self._made()
        keep = impl.keep(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        with impl.saver.region(tag, keep):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = DEFAULT,
        enable_cpu_backup: bool = True,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """``torch.cuda.graph`` with memory that can be paused. Kept by default, for its constants (sglang#32718)."""
        impl = self._made()
        if impl.pools is None:
            raise AprilError("memory: there are no CUDA graphs on a CPU: start the engine with --disable-cuda-graph")
        keep = impl.saver.kept(tag, impl.keep(enable_cpu_backup, False, cpu_backup_backend))
        with impl.pools.capturing((tag, keep), cuda_graph, pool, stream, capture_error_mode):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """What is allocated in the body is never paused."""
        with self._made().saver.disable():
            yield

    def pause(self, tag: str | None = None) -> None:
        """Gives the memory of ``tag``, or all, back to the device. The hosts pause between rounds: compacts if due."""
        saver = self._made().saver
        for each in reversed(kinds.with_followers(tag, saver.core.tags())):
            self._told("pause", each, saver.pause)
        self._told("compact", None, lambda _: saver.between_rounds())

    def resume(self, tag: str | None = None) -> None:
        """Brings it back at the same addresses."""
        saver = self._made().saver
        for each in kinds.with_followers(tag, saver.core.tags()):
            self._told("resume", each, saver.resume)

    def _told(self, operation: str, tag: str | None, move: Callable[[str | None], int | None]) -> None:
        before, started = report.resident(), time.perf_counter()
        size = move(tag)
        if size is not None:
            told = report.Move(operation, tag, size, time.perf_counter() - started, before)
            report.moved(told, self.saver.stats())

    @property
    def enabled(self) -> bool:
        """Always; a caller that wants none does not call."""
        return True

    @property
    def hook_mode(self) -> str:
        """Accepted for compatibility: there is one way here, through PyTorch's allocator."""
        return self._hook_mode

    @hook_mode.setter
    def hook_mode(self, value: str) -> None:
        if value not in ("preload", "torch"):
            raise UsageError(f"hook_mode is preload or torch, not {value!r}")
        self._hook_mode = value

    @property
    def memory_margin_bytes(self) -> int:
        """Bytes of the device that an allocation leaves free."""
        return self._made().saver.margin

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        self._made().saver.margin = value

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether backups stay on the host after a resume."""
        return self._made().saver.retain

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._made().saver.retain = value

    def set_disk_backup_dir(self, path: str) -> None:
        """Where files of regions with ``enable_disk_backup`` go; before the first use."""
        if self._impl is not None:
            raise UsageError("set_disk_backup_dir comes before the first region")
        os.makedirs(path, exist_ok=True)
        self._folder = path

    def get_cpu_backup(self, x: Tensor, zero_copy: bool = False) -> Tensor | None:
        """The contents of a paused tensor, from the host; None for one that can be read itself.

        Raises:
            AprilError: when the tensor's contents were dropped.
        """
        import torch

        assert x.is_contiguous(), f"{x.shape=} {x.stride()=}"
        saver = self._made().saver
        found = saver.core.backup(x.data_ptr(), x.nbytes)
        if found is None:
            if x.nbytes and saver.state(x.data_ptr()) == "paused":
                raise AprilError(f"memory: a paused tensor of shape {tuple(x.shape)} is in a region without a backup")
            return None
        view = (ctypes.c_uint8 * x.nbytes).from_address(found)
        kept = torch.frombuffer(view, dtype=torch.uint8).view(x.dtype).view(x.shape)
        return kept if zero_copy else kept.clone()


class Impl:
    """What a first use makes. Its attributes are read by the hosts too (``_impl._binary_wrapper.cdll``)."""

    def __init__(self, folder: str | None) -> None:
        from april.memory import gpu, tensors

        self.process = os.getpid()
        driver = gpu.driver()
        self.pools: gpu.Pools | None = None
        if driver == "host":
            self.saver = MemorySaver(backup_folder=folder, capture=tensors.capture)
        else:
            import torch

            device = torch.cuda.current_device()
            limit = gpu.extent_limit()
            self.saver = MemorySaver(
                driver=driver, device=device, backup_folder=folder, extent_limit=limit, capture=self._pooled
            )
            self.pools = gpu.Pools(self.saver)
        self._binary_wrapper = BinaryWrapper(self.saver)
        self.held: list[contextlib.AbstractContextManager[Any]] = []

    def _pooled(self, saver: MemorySaver) -> contextlib.AbstractContextManager[None]:
        assert self.pools is not None
        return self.pools.using(saver)

    def keep(self, cpu: bool, disk: bool, backend: str | None) -> bool | Keep:
        """How a region's contents are kept, by torch_memory_saver's flags."""
        if cpu and disk:
            raise UsageError("enable_cpu_backup and enable_disk_backup exclude each other")
        if backend is not None and (not cpu or backend not in BACKENDS):
            raise UsageError(f"cpu_backup_backend is {' or '.join(BACKENDS)}, and needs enable_cpu_backup")
        if disk:
            return Keep.FILE
        if backend is None or (backend == "pinned" and self.saver.driver == "host"):
            return cpu
        return BACKENDS[backend]


class BinaryWrapper:
    """The two functions of torch_memory_saver's library that hosts call to switch tracking off and on again."""

    def __init__(self, saver: MemorySaver) -> None:
        self._saver = saver
        self._off: list[contextlib.AbstractContextManager[None]] = []

    @property
    def cdll(self) -> BinaryWrapper:
        """Itself."""
        return self

    def tms_get_interesting_region(self) -> bool:
        """Whether this thread is in a region."""
        return self._saver.current is not None

    def tms_set_interesting_region(self, value: bool) -> None:
        """``False`` switches tracking off, the next ``True`` on again where it was on."""
        if not value and self.tms_get_interesting_region():
            context = self._saver.disable()
            context.__enter__()
            self._off.append(context)
        elif value and self._off:
            self._off.pop().__exit__(None, None, None)


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """A child needs nothing preloaded."""
    yield


def track_whole_process() -> None:
    """Everything that this thread allocates from now on belongs to the region ``default``.

    What torch_memory_saver does where TMS_INIT_ENABLE is set (``--offload-train``); TMS_INIT_ENABLE_CPU_BACKUP keeps
    contents. On a GPU call it in the thread that builds the model, after its device was chosen.
    """
    impl = torch_memory_saver._made()
    keep = impl.saver.kept(DEFAULT, _is_set("TMS_INIT_ENABLE_CPU_BACKUP"))
    impl.saver.regions.stack.append((DEFAULT, keep))
    if impl.pools is None:
        from april.memory.tensors import Factories

        held: contextlib.AbstractContextManager[Any] = Factories(impl.saver, WHOLE_PROCESS_LEAST)
    else:
        held = impl.pools.using(impl.saver)
    held.__enter__()
    impl.held.append(held)


def host_memory() -> contextlib.AbstractContextManager[None]:
    """What is allocated in the body stays when the process is paused: pinned memory, where device and host are one."""
    impl = torch_memory_saver._impl
    return contextlib.nullcontext() if impl is None or impl.saver.current is None else torch_memory_saver.disable()


def whole_process_wanted() -> bool:
    """Whether the host asked for it in this process's environment."""
    return _is_set("TMS_INIT_ENABLE")


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes")


torch_memory_saver = TorchMemorySaver()
