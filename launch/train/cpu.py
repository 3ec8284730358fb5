"""What a run on a CPU is given beside the user's flags, which come later and win."""

from __future__ import annotations

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}
"""One thread a process: several processes share the cores. torch.compile would take longer than the run. Ray without
clusters (the flag's name is older than its use) binds to the loopback address, and so do the engines."""

FLAGS = [
    "--sglang-device",
    "cpu",
    "--sglang-attention-backend",
    "torch_native",
    "--sglang-max-total-tokens",
    "32768",
    "--sglang-server-concurrency",
    "256",
    "--sglang-sleep-on-idle",
    "--rollout-num-gpus",
    "1",
    "--rollout-num-gpus-per-engine",
    "1",
    "--actor-num-nodes",
    "1",
    "--actor-num-gpus-per-node",
    "1",
    "--transformer-impl",
    "local",
    "--spec",
    "april.patches.cpu.layer_spec",
    "get_spec",
    "--distributed-backend",
    "gloo",
    "--use-cpu-initialization",
    "--no-persist-layer-norm",
    "--no-rope-fusion",
    "--no-bias-swiglu-fusion",
    "--no-bias-dropout-fusion",
    "--no-masked-softmax-fusion",
    "--no-gradient-accumulation-fusion",
    "--attention-softmax-in-fp32",
    "--accumulate-allreduce-grads-in-fp32",
    "--micro-batch-size",
    "1",
    "--use-dynamic-batch-size",
    "--max-tokens-per-gpu",
    "4096",
]
"""Logical devices, gloo, Megatron without Transformer Engine and Apex, SGLang's torch attention; an engine that
waits for the trainer leaves it the core."""
DEVICES_PER_NODE = 2


def flags(nodes: int) -> list[str]:
    """For so many Ray nodes. To the hosts they are one: they give out the ports of each node apart from the others'."""
    return [*FLAGS, "--num-gpus-per-node", str(DEVICES_PER_NODE * nodes)]
