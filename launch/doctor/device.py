"""The accelerator: whether torch was built for it, its driver, its device files, its release."""

from __future__ import annotations

from .check import Check, fail, ok, unknown, warn
from .facts import Facts
from .numbers import release
from .reading import Unread

DRIVERS = {12: 525, 13: 580}
"""By CUDA's major: the oldest driver branch that runs it.
docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1."""
TARGETS = {"gfx942": "MI300X, MI325X", "gfx950": "MI350X, MI355X"}
"""AMD targets that upstream runs this stack on: torch_memory_saver#52 (MI300 to MI325), miles#1680 (gfx950)."""
DOCKER = "docker run --device /dev/kfd --device /dev/dri --group-add video --group-add render"


def checks(facts: Facts) -> list[Check]:
    """The checks of this module."""
    found = [_accelerator(facts), _torch(facts)]
    if facts.device.name == "cuda":
        return [*found, _driver(facts)]
    if facts.device.name == "rocm":
        return [*found, _files(facts), _rocm(facts), _targets(facts), _kernel_options(facts)]
    return found


def _accelerator(facts: Facts) -> Check:
    device = facts.device
    if device.name == "cpu":
        if isinstance(device.cpu_flags, Unread):
            return unknown("accelerator", device.cpu_flags.why, "run lscpu to see what this CPU has")
        fast = (
            "amx_bf16" if "amx_bf16" in device.cpu_flags else "avx512_bf16" if "avx512_bf16" in device.cpu_flags else ""
        )
        return ok("accelerator", f"cpu ({device.why}); bf16 {f'by {fast}' if fast else 'without AMX or AVX512_BF16'}")
    if not device.gpus:
        tool = "nvidia-smi" if device.name == "cuda" else "rocminfo"
        remedy = f"see whether {tool} lists a GPU and whether the container was given it, or use --device cpu"
        return fail("accelerator", f"{device.name} ({device.why}), but no GPU is listed", remedy)
    names = ", ".join(f"{device.gpus.count(name)} x {name}" for name in dict.fromkeys(device.gpus))
    return ok("accelerator", f"{device.name}: {names}")


def _torch(facts: Facts) -> Check:
    """A missing torch is reported with its pin."""
    name, torch, wanted = "torch build", facts.packages.torch, facts.device.name
    remedy = f"install torch's {wanted} build, or name the Python that holds it: make setup PYTHON=..."
    if isinstance(torch, Unread):
        return unknown(name, torch.why, remedy)
    if torch is None:
        return fail(name, "torch is not installed", "make setup DEVICE=cpu" if wanted == "cpu" else remedy)
    said = f"{torch.build}{f' {torch.runtime}' if torch.runtime else ''}"
    if torch.build == wanted:
        return ok(name, said)
    if wanted == "cpu":
        return warn(
            name, f"{said} on a machine without a GPU: large, and not what was checked", "make setup DEVICE=cpu"
        )
    return fail(name, f"{said} on a {wanted} machine", remedy)


def _driver(facts: Facts) -> Check:
    name, device, torch = "NVIDIA driver", facts.device, facts.packages.torch
    if isinstance(device.driver, Unread):
        return unknown(
            name, device.driver.why, "run nvidia-smi and compare its driver with CUDA's table of minimum drivers"
        )
    if device.driver is None:
        return fail(
            name, "no driver is loaded", "install NVIDIA's driver on the host, or start the container with --gpus all"
        )
    if not device.libcuda:
        remedy = "start the container with --gpus all, or put the driver's folder on LD_LIBRARY_PATH"
        return fail(name, f"{device.driver}, but libcuda.so.1 does not load", remedy)
    runtime = getattr(torch, "runtime", None) or ""
    least = DRIVERS.get(release(runtime)[0]) if release(runtime) else None
    if least and release(device.driver)[0] < least:
        remedy = f"install driver {least} or later, or a torch for an older CUDA"
        return fail(name, f"{device.driver} is too old for CUDA {runtime}, which needs {least}", remedy)
    return ok(name, f"{device.driver}{f' for CUDA {runtime}' if runtime else ''}")


def _files(facts: Facts) -> Check:
    """ROCm: rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html."""
    name, device = "device files", facts.device
    if not device.kfd:
        return fail(name, "/dev/kfd is missing", f"load amdgpu on the host; in a container: {DOCKER}")
    if not device.kfd_access:
        remedy = f"add this user to the group of the file (render or video); in a container: {DOCKER}"
        return fail(name, "/dev/kfd may not be read and written by this user", remedy)
    if not device.render_nodes:
        return fail(name, "/dev/dri holds no render node", f"in a container: {DOCKER}")
    if len(device.render_denied) == len(device.render_nodes):
        remedy = f"add this user to the group of the files (render or video); in a container: {DOCKER}"
        return fail(name, "no render node of /dev/dri may be read and written by this user", remedy)
    if device.render_denied:
        denied = ", ".join(device.render_denied)
        return warn(name, f"no access to {denied}: those GPUs are out of reach", "add this user to the files' groups")
    return ok(name, f"/dev/kfd and {len(device.render_nodes)} render nodes, amdgpu {device.driver or 'not seen'}")


def _rocm(facts: Facts) -> Check:
    """Which releases the memory saver can use is checked in ``memory_saver``."""
    name, rocm, torch = "ROCm", facts.device.rocm, facts.packages.torch
    remedy = "set ROCM_PATH to the folder whose .info/version names ROCm's release"
    if isinstance(rocm, Unread):
        return unknown(name, rocm.why, remedy)
    if rocm is None:
        return warn(name, "no /opt/rocm: the release is known from torch only", remedy)
    runtime = getattr(torch, "runtime", None) or ""
    if runtime and release(rocm)[:2] != release(runtime)[:2]:
        said = f"{rocm}, but torch was built for HIP {runtime}"
        return warn(name, said, "use a torch and a ROCm of the same release")
    return ok(name, f"{rocm}{f', HIP {runtime}' if runtime else ''}")


def _targets(facts: Facts) -> Check:
    name = "GPU target"
    strange = sorted(set(facts.device.gpus) - set(TARGETS))
    if strange:
        said = f"{', '.join(strange)}: upstream runs this stack on {' and '.join(TARGETS)}"
        return warn(name, said, "try a short run first, with the memory saver off")
    return ok(name, ", ".join(f"{target} ({TARGETS[target]})" for target in sorted(set(facts.device.gpus))) or "no GPU")


def _kernel_options(facts: Facts) -> Check:
    """SGLang's page for AMD GPUs, docs.sglang.io/platforms/amd_gpu.html: ``pci=realloc=off iommu=pt``."""
    name, options = "kernel options", facts.device.kernel_options
    remedy = "append 'pci=realloc=off iommu=pt' to GRUB_CMDLINE_LINUX, update-grub, reboot"
    if isinstance(options, Unread):
        return unknown(name, options.why, remedy)
    missing = [option for option in ("iommu=pt", "pci=realloc=off") if option not in options.split()]
    return warn(name, f"{' and '.join(missing)} not set", remedy) if missing else ok(name, "iommu=pt pci=realloc=off")
