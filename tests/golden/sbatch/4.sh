#!/bin/bash
#SBATCH --job-name=raysuite-demo
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --gres=gpu:a100:4
#SBATCH --mem=480G
#SBATCH --time=1-00:00:00
#SBATCH --partition=gpu
#SBATCH --account=physics-1
#SBATCH --qos=normal
#SBATCH --constraint="a100&hdr"
#SBATCH --chdir="/home/ada/my experiments"
#SBATCH --output=/home/ada/.raysuite/clusters/demo/logs/slurm.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --export=NONE
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --requeue
#SBATCH --mail-type=END

# The Ray cluster demo of raysuite, site example.
set -eo pipefail
# The submitting shell's variables stay there, and SLURM may fail to find those of a login.
if [[ -z ${HOME:-} ]]; then
  unset HOME
  HOME=~
fi
: "${USER:=$(id -un)}"
PATH=${PATH%:.}  # bash itself adds the working folder where SLURM gives it no PATH
export HOME USER PATH

type module >/dev/null 2>&1 || source /etc/profile || true
module load Stages/2024
module load CUDA/12.4
folder=/home/ada/.raysuite/clusters/demo
scratch=''
command=(/home/ada/raysuite/.venv/bin/python -P -m raysuite.cluster.agent /home/ada/.raysuite/clusters/demo)
step=(--ntasks-per-node=1 --cpus-per-task=48 --export=ALL --cpu-bind=none --mpi=none --input=none --label --no-kill --wait=0 --kill-on-bad-exit=0)
warn_seconds=120
head_restarts=2
requeue=1

set -u

# SLURM sends its warning to this shell only: in the step, the signal would end Ray's processes.
warn() {
  local fresh=$folder/.stop.json.$SLURM_JOB_ID
  if [[ ! -e $folder/stop.json ]]; then
    deadline=$(($(date +%s) + warn_seconds))
    (umask 077 && printf '{"reason": "time_limit", "deadline": %d}\n' "$deadline" >"$fresh")
    mv -f -- "$fresh" "$folder/stop.json"
    warned=1
  fi
}

suites_are_left() {
  local file
  for file in "$folder"/suites/*.json; do
    if [[ -e $file ]]; then return 0; fi
  done
  return 1
}

# If slurmd's own process of the step has died on a node, srun waits for that node for ever.
end_step() {
  local each
  broken=1
  echo "raysuite: the cluster has ended and its step has not; ending the step" >&2
  for each in $(squeue --steps --noheader --jobs="$SLURM_JOB_ID" --format=%i); do
    case $each in
      *.batch | *.extern | *.interactive) ;;
      *) scancel "$each" || true ;;
    esac
  done
}

# SLURM itself queues a job again for a lost node or preemption, not for its time limit.
queue_again() {
  if ((requeue && warned && !queued)) && suites_are_left; then
    queued=1
    echo "raysuite: the time limit came before the end of all suites; queueing the job again"
    scontrol requeue "$SLURM_JOB_ID" || echo "raysuite: SLURM does not queue it again" >&2
  fi
}

# This runs on each node, around its agent. If the head's agent was killed, it records the end of
# the cluster. The site's variables come from a file: all users of a node see argument lists. If the
# first host is lost, the batch script is lost too, and the job keeps the other nodes without using
# them.
# shellcheck disable=SC2016
on_node='
requeue=$1 over=$2 environment=$3 scratch=$4
shift 4
trap : TERM INT HUP
if [[ ! -r $environment ]]; then
  echo "raysuite: ${SLURMD_NODENAME%%.*}: does not see ${over%/*}; set RAYSUITE_HOME to a folder" \
    "that all nodes share" >&2
  exit 1
fi
(
  while IFS= read -r pair; do
    case $pair in
      PATH=* | LD_LIBRARY_PATH=*)
        name=${pair%%=*}
        pair+=${!name:+:${!name}}
        ;;
    esac
    export "$pair"
  done <"$environment"
  bind=
  while [[ $scratch =~ ^([^$]*)[$]([{]?)([A-Za-z_][A-Za-z0-9_]*)[}]?(.*)$ ]]; do
    bind+=${BASH_REMATCH[1]}${!BASH_REMATCH[3]-} scratch=${BASH_REMATCH[4]}
  done
  if [[ -n $bind ]]; then
    export APPTAINER_BIND="${APPTAINER_BIND:+$APPTAINER_BIND,}$bind$scratch"
  fi
  exec "$@"
)
status=$?
if ((status == 126 || status == 127)); then
  echo "raysuite: ${SLURMD_NODENAME%%.*}: cannot run $1 (status $status)" >&2
fi
if [[ ${SLURM_NODEID:-} == 0 ]]; then (umask 077 && : >"$over"); fi
if ((status == 0)); then exit 0; fi
read -r first <<<"$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
left=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%N) &&
  left=$(scontrol show hostnames "$left") || exit "$status"
while read -r host; do
  if [[ $host == "$first" ]]; then exit "$status"; fi
done <<<"$left"
echo "raysuite: the first host is lost, and its batch script; ending what is left" >&2
if ((requeue)); then scontrol requeue "$SLURM_JOB_ID"; else scancel "$SLURM_JOB_ID"; fi
exit "$status"
'

warned=0 queued=0 cancelled=0 restarts=0 deadline=0 broken=0
last_seconds=$((warn_seconds < 20 ? warn_seconds / 2 : 10))
trap warn USR1
trap 'cancelled=1' TERM
rm -f -- "$folder/stop.json"
echo "raysuite: job $SLURM_JOB_ID, attempt ${SLURM_RESTART_COUNT:-0}, nodes $SLURM_JOB_NODELIST"

while :; do
  rm -f -- "$folder/head.json" "$folder/over"
  srun --nodes="$SLURM_JOB_NUM_NODES" "${step[@]}" bash -c "$on_node" raysuite \
    "$requeue" "$folder/over" "$folder/environment" "$scratch" "${command[@]}" &
  srun=$! status=0 over=0
  while kill -0 "$srun" 2>/dev/null; do
    sleep 1
    if ((warned)) && (($(date +%s) >= deadline - last_seconds)); then queue_again; fi
    if [[ -e $folder/over ]]; then over=$((over + 1)); fi
    if ((over == 30)); then end_step; fi
  done
  wait "$srun" || status=$?
  if ((status == 0 || cancelled)) || [[ -e $folder/stop.json ]]; then
    queue_again
    exit 0
  fi
  # slurmctld 22.05 gives a job that has lost a node no further step, and may crash over one
  nodes=$(squeue --noheader --noconvert --jobs="$SLURM_JOB_ID" --format=%D) ||
    nodes=$SLURM_JOB_NUM_NODES
  if ((broken || nodes < SLURM_JOB_NUM_NODES)); then
    echo "raysuite: the cluster ended with status $status, after a node was lost" >&2
    if ((requeue)); then
      scontrol requeue "$SLURM_JOB_ID"
    fi
    exit "$status"
  fi
  if ((restarts >= head_restarts)); then
    echo "raysuite: the cluster ended with status $status; no start is left of $restarts" >&2
    exit "$status"
  fi
  restarts=$((restarts + 1))
  echo "raysuite: the cluster ended with status $status; start $restarts of $head_restarts" >&2
done
