#!/usr/bin/env bash
# demo: 2 x 8 devices (cpu) of a Ray cluster that is there already.
# Usage: bash THIS [http://HEAD:8265], or RAY_API_SERVER_ADDRESS. Its nodes hold the stack, the overlay and the folders.
# Submit it again after an interruption: the run goes on from its last checkpoint, with its buffer.
# shellcheck disable=SC2016 # values are literal: nothing in them expands
set -euo pipefail
address=${1:-${RAY_API_SERVER_ADDRESS:?give the address of the cluster: bash $0 http://HEAD:8265}}

# Ray would refuse a variable that both the job and the run set (PYTHONPATH): with the override the run's value wins,
# which holds the job's.
runtime_env='{"env_vars": {"NCCL_GRAPH_REGISTER": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "PYTHONUNBUFFERED": "1", "RAY_raylet_start_wait_time_s": "120", "SGLANG_USE_CPU_ENGINE": "1", "RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "NCCL_IB_HCA": "mlx5_0,mlx5_1", "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}}'

IFS= read -r -d '' script <<'APRIL_RUN' || true # there is no NUL to end at
#!/usr/bin/env bash
# The run demo on the head of a Ray cluster that is there already (RAY_ADDRESS names it).
set -euo pipefail
run_dir=/runs/demo
attempt=0
while [ -e "$run_dir/attempt-$attempt" ]; do
  attempt=$((attempt + 1))
done
attempt_dir=$run_dir/attempt-$attempt
exec april train --hf-checkpoint /models/qwen3-4b --load /runs/demo/save --save /runs/demo/save --run-dir "$attempt_dir"
APRIL_RUN

exec ray job submit --address "$address" --runtime-env-json "$runtime_env" -- bash -c "$script"
