#!/usr/bin/env bash
# A Ray cluster inside one Slurm job, and `scalerl train` on it. Adapt the lines marked HERE. The project has not run
# this script on a cluster. Submit: sbatch examples/slurm.sh node.toml
#SBATCH --job-name=scalerl
#SBATCH --nodes=10                 # HERE: 10 nodes of 8 GPUs, as in the paper
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64         # HERE
#SBATCH --exclusive
#SBATCH --time=24:00:00            # HERE
#SBATCH --signal=B:TERM@600        # ten minutes before the end, the run writes a checkpoint and stops
set -euo pipefail

config=${1:?usage: sbatch slurm.sh CONFIG.toml [RUN_DIR]}
run=${2:-$PWD/runs/$SLURM_JOB_NAME}  # a directory that all nodes see
source "$PWD/.venv/bin/activate"      # HERE

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=$(getent ahosts "${nodes[0]}" | awk 'NR == 1 { print $1 }')
port=6379
gpus=${SLURM_GPUS_ON_NODE:-8}

srun --nodes=1 --ntasks=1 --overlap --nodelist="${nodes[0]}" \
  ray start --head --node-ip-address="$head" --port=$port --num-gpus="$gpus" --block &
sleep 20
for node in "${nodes[@]:1}"; do
  srun --nodes=1 --ntasks=1 --overlap --nodelist="$node" \
    ray start --address="$head:$port" --num-gpus="$gpus" --block &
done

for _ in $(seq 60); do  # wait until every node has joined
  [ "$(RAY_ADDRESS="$head:$port" ray list nodes --filter state=ALIVE --format json | grep -c '"node_id"')" \
    -ge "${#nodes[@]}" ] && break
  sleep 5
done

if [ -e "$run/config.toml" ]; then  # the job was requeued: resume from the last checkpoint
  RAY_ADDRESS="$head:$port" scalerl resume "$run" &
else
  RAY_ADDRESS="$head:$port" scalerl train "$config" --placement.ray_address "$head:$port" --run-dir "$run" &
fi
trainer=$!
trap 'kill -TERM $trainer' TERM
wait $trainer || wait $trainer  # the first `wait` ends with the signal, the second with the run
