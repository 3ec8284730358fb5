#!/usr/bin/env bash
# demo: 2 x 8 devices (mi300x-8). sbatch [--account=... --qos=...] THIS
#SBATCH --job-name=demo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
# shellcheck disable=SC2016 # values are literal: nothing in them expands
set -euo pipefail

job=${SLURM_JOB_ID:?this file is for sbatch: sbatch $0}
run_dir=/runs/demo
ray_dir=/tmp/april-$job-${SLURM_RESTART_COUNT:-0} # Ray's sessions and sockets, on each node
nodes=2
export NCCL_GRAPH_REGISTER=0
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTHONUNBUFFERED=1
export RAY_raylet_start_wait_time_s=120
export RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES=1
export HIP_FORCE_DEV_KERNARG=1
export HSA_NO_SCRATCH_RECLAIM=1
export NCCL_MIN_NCHANNELS=112
export HIP_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
export NCCL_IB_HCA=mlx5_0,mlx5_1
if [ "$(cat /proc/sys/kernel/numa_balancing 2>/dev/null)" = 1 ]; then
  echo "april: the kernel moves pages between NUMA nodes, which stalls kernels: set kernel.numa_balancing=0" >&2
fi
mounts="$run_dir:$run_dir,$ray_dir:$ray_dir"
mounts+=,/models:/models
mounts+=,/data:/prompts
mounts+=,/dev/kfd:/dev/kfd,/dev/dri:/dev/dri
pyxis=(--container-image=registry.example/april:1 --container-mounts="$mounts" --no-container-mount-home --container-writable)
inside=()
# SLURM sets ROCR_VISIBLE_DEVICES in each task; Ray takes HIP's alone, and both would be applied after each other.
inside+=(env -u ROCR_VISIBLE_DEVICES -u GPU_DEVICE_ORDINAL -u CUDA_VISIBLE_DEVICES)

# All cores for each task: SGLang and slime bind each of their processes to the NUMA node of its device.
step=(srun --export=ALL --overlap --ntasks-per-node=1 --cpu-bind=none --mem=0 "${pyxis[@]}")
bare=(srun --export=ALL --overlap --ntasks-per-node=1 --cpu-bind=none --mem=0)
names=$(scontrol show hostnames "$SLURM_JOB_NODELIST") # one a line
head_node=${names%%$'\n'*}
head_ip=$(getent ahostsv4 "$head_node" | awk 'NR == 1 { print $1 }')
case $head_ip in
  '' | 127.*) head_ip=$(hostname -I | awk '{ print $1 }') ;; # /etc/hosts gives this node a loopback address
esac
on_head=(--nodes=1 --ntasks=1 --nodelist="$head_node")
on_all=(--nodes="$nodes" --ntasks="$nodes")

listens() { # PORT: whether something on this node, which is the head, listens there
  local ip
  for ip in "$head_ip" 127.0.0.1; do
    timeout 2 bash -c 'exec 3<>"/dev/tcp/$1/$2"' _ "$ip" "$1" 2>/dev/null && return 0
  done
  return 1
}

free_port() { # FIRST: the first port from there on that is free
  local port=$1
  while listens "$port"; do
    port=$((port + 1))
  done
  echo "$port"
}

running() { # PID: whether that step of ours still runs
  [ -n "$1" ] && kill -0 "$1" 2>/dev/null
}

end_step() { # PID: ask a step of ours to end, and end it a minute later
  running "$1" || return 0
  kill -TERM "$1" 2>/dev/null || return 0
  for _ in $(seq 120); do
    running "$1" || return 0
    sleep 0.5
  done
  kill -KILL "$1" 2>/dev/null || true
}

run_pid='' head_pid='' workers_pid='' again='' attempt_dir=''
finish() { # whatever ends the job: what it started ends, nothing else does
  local code=$?
  trap '' TERM INT USR1
  trap - EXIT
  end_step "$run_pid"
  end_step "$workers_pid"
  end_step "$head_pid"
  # shellcheck disable=SC2016 # expanded on each node
  "${bare[@]}" "${on_all[@]}" bash -c '
    if [ -n "$2" ] && [ -d "$1/session_latest/logs" ]; then
      mkdir -p "$2/logs" && cp -r "$1/session_latest/logs" "$2/logs/ray-$(hostname)"
    fi
    rm -rf -- "$1"' _ "$ray_dir" "$attempt_dir" || echo "april: $ray_dir was not removed on every node" >&2
  if [ -n "$again" ] && [ "$code" -ne 0 ]; then
    echo "april: the time is over: the job is queued again and goes on from its last checkpoint" >&2
    scontrol requeue "$job"
  fi
  exit "$code"
}
interrupt() { # the run ends as after Ctrl-C
  if running "$run_pid"; then
    kill -TERM "$run_pid"
  else
    exit 143
  fi
}
trap finish EXIT
trap 'again=1; interrupt' USR1 # 300 s before the end of the time
trap interrupt TERM INT # scancel, and a preemption, after which SLURM itself queues the job again

mkdir -p "$run_dir"
"${bare[@]}" "${on_all[@]}" mkdir -m 700 "$ray_dir"
client_port=$(free_port $((20000 + job % 12000))) # below the ephemeral ports

# Ports that the system finds (0), and no dashboard: two jobs on a node do not meet.
ray_start=("${inside[@]}" ray start --block --disable-usage-stats --num-gpus=8
  --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0)
"${step[@]}" "${on_head[@]}" "${ray_start[@]}" --head --node-ip-address="$head_ip" --port=0 \
  --ray-client-server-port="$client_port" --include-dashboard=false --temp-dir="$ray_dir" &
head_pid=$!
for _ in $(seq 240); do
  [ -s "$ray_dir/ray_current_cluster" ] && break
  running "$head_pid" || break
  sleep 0.5
done
if ! address=$(cat "$ray_dir/ray_current_cluster" 2>/dev/null) || [ -z "$address" ]; then
  echo "april: error: Ray did not start on $head_node: see above" >&2
  exit 1
fi
if [ "$nodes" -gt 1 ]; then
  "${step[@]}" --nodes=$((nodes - 1)) --ntasks=$((nodes - 1)) --exclude="$head_node" \
    "${ray_start[@]}" --address="$address" &
  workers_pid=$!
fi

# The run waits for devices without end: better to say that a node did not join.
"${step[@]}" "${on_head[@]}" "${inside[@]}" python3 -c '
import sys, time, ray
address, wanted, deadline = sys.argv[1], int(sys.argv[2]), time.monotonic() + 300
ray.init(address=address, log_to_driver=False)
while (here := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > deadline:
        sys.exit(f"april: error: {here} of {wanted} nodes joined the Ray cluster at {address} in 300 s")
    time.sleep(1)
' "$address" "$nodes"

attempt=0
while [ -e "$run_dir/attempt-$attempt" ]; do
  attempt=$((attempt + 1))
done
attempt_dir=$run_dir/attempt-$attempt
echo "april: attempt $attempt on $nodes nodes, head $address, record $attempt_dir"
"${step[@]}" "${on_head[@]}" "${inside[@]}" env RAY_ADDRESS="$address" \
  april train --hf-checkpoint /models/qwen3-4b --load /runs/demo/save --save /runs/demo/save --run-dir "$attempt_dir" &
run_pid=$!
while running "$run_pid"; do
  wait "$run_pid" || true # a signal ends a wait, not the run
done
wait "$run_pid"
