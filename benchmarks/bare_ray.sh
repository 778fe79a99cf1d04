#!/bin/bash
# Ray on three hosts of a SLURM site by hand: `ray start` under srun, and a job. See cluster_up.py.
set -euo pipefail
export RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0
nodes=3 cpus=2 dashboard=8265

job=$(sbatch --parsable --partition=lab --nodes="$nodes" --ntasks-per-node=1 \
  --cpus-per-task="$cpus" --time=30 --output=bare_ray.out <<'END'
#!/bin/bash
first=$(scontrol show hostnames | head -n 1)
address=$(getent ahostsv4 "$first" | awk 'NR == 1 { print $1 }')
options=(--num-cpus="$SLURM_CPUS_PER_TASK" --object-store-memory=500000000 --block)
srun --nodes=1 --ntasks=1 --nodelist="$first" ray start --head --node-ip-address="$address" \
  --port=6379 --dashboard-host="$address" --dashboard-port=8265 "${options[@]}" &
until (exec 3<>"/dev/tcp/$address/6379") 2>/dev/null; do sleep 0.2; done
others=$((SLURM_JOB_NUM_NODES - 1))
srun --nodes="$others" --ntasks="$others" --exclude="$first" \
  ray start --address="$address:6379" "${options[@]}" &
wait
END
)

# first the host, then Ray's own count of nodes that live
until first=$(squeue --noheader --jobs="$job" --states=RUNNING --format=%B) && [[ -n $first ]]; do
  sleep 0.2
done
url="http://$(getent ahostsv4 "$first" | awk 'NR == 1 { print $1 }'):$dashboard"
python - "$url/api/v0/nodes" "$nodes" <<'END'
import json, sys, time, urllib.request

url, wanted = sys.argv[1], int(sys.argv[2])
deadline = time.monotonic() + 900
while True:
    try:
        found = json.load(urllib.request.urlopen(url, timeout=5))["data"]["result"]["result"]
        if sum(node["state"] == "ALIVE" for node in found) >= wanted:
            break
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if time.monotonic() > deadline:
        sys.exit("the nodes did not join")
    time.sleep(0.2)
END
ray job submit --address="$url" --no-wait -- true
