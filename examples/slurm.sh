#!/usr/bin/env bash
# A Ray cluster inside one Slurm job, and `scalerl train` on it. Adapt the lines marked HERE. The project has not run
# this script on a cluster; a test runs it with stand-ins for srun and scontrol, a requeue included.
# Submit: sbatch examples/slurm.sh node.toml
#SBATCH --job-name=scalerl
#SBATCH --nodes=10                 # HERE: 10 nodes of 8 GPUs, as in the paper
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64         # HERE
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --time=24:00:00            # HERE
#SBATCH --signal=B:TERM@600        # ten minutes before the end, the run writes a checkpoint and stops
set -euo pipefail

config=${1:?usage: sbatch slurm.sh CONFIG.toml [RUN_DIR]}
run=${2:-$PWD/runs/$SLURM_JOB_NAME}  # a directory that all nodes see
source "${VIRTUAL_ENV:-$PWD/.venv}/bin/activate"  # HERE: on a disk that all nodes see

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(getent ahosts "${nodes[0]}" | awk 'NR == 1 { print $1 }')
port=${RAY_PORT:-6379}
gpus=${SLURM_GPUS_ON_NODE:-8}

# A token of this job, which srun passes on. Without it, a token that Ray has left in the home directory would be
# required by the head and sent by nobody.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c "import secrets; print(secrets.token_hex(32))")
export RAY_AUTH_TOKEN
export RAY_ADDRESS="$head:$port"  # of this allocation: a requeued job gets other nodes
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=1  # actors without GPUs see none

started=()
start() {  # NODE ARGUMENTS...: start Ray on a node
  env -u RAY_ADDRESS srun --nodes=1 --ntasks=1 --overlap --nodelist="$1" \
    ray start "${@:2}" --num-gpus="$gpus" --disable-usage-stats --block &
  started+=($!)
}

joined() {  # wait until every node has joined, and say how many have not
  python - "$1" <<'PY'
import sys, time, ray

ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
wanted, until = int(sys.argv[1]), time.monotonic() + 600
while (alive := sum(node["Alive"] for node in ray.nodes())) < wanted and time.monotonic() < until:
    time.sleep(2)
sys.exit(f"slurm.sh: {alive} of {wanted} nodes have joined Ray in 600 s; see the lines above" if alive < wanted else 0)
PY
}

start "${nodes[0]}" --head --node-ip-address="$head" --port="$port" --include-dashboard=false
until (exec 3<> "/dev/tcp/$head/$port") 2> /dev/null; do  # until the head listens
  kill -0 "${started[0]}" 2> /dev/null || { echo "slurm.sh: Ray did not start on ${nodes[0]}" >&2; exit 1; }
  sleep 1
done
for node in "${nodes[@]:1}"; do
  start "$node" --address="$head:$port"
done
joined "${#nodes[@]}" || { kill "${started[@]}" 2> /dev/null || true; exit 1; }

if [ -e "$run/config.toml" ]; then  # the job was requeued: resume from the last checkpoint, on these nodes
  scalerl resume "$run" --placement.ray_address auto &
else
  scalerl train "$config" --placement.ray_address auto --run-dir "$run" &
fi
trainer=$!
trap 'kill -TERM $trainer' TERM
code=0
wait $trainer || code=$?
while kill -0 $trainer 2> /dev/null; do  # the first `wait` ends with the signal, a later one with the run
  code=0
  wait $trainer || code=$?
done
kill "${started[@]}" 2> /dev/null || true  # of Ray; Slurm ends what is left
exit $code
