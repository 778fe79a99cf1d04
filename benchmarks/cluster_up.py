"""Measure `raysuite cluster up` until a job is accepted, relative to a bare `ray start` by srun.

    make lab-up
    python benchmarks/cluster_up.py [PAIRS]      (as root)

Both sides ask SLURM for the same three hosts of the lab, start Ray on each, wait until Ray counts
three nodes, and submit a job. The bare side (benchmarks/bare_ray.sh) has no tokens, no MLflow
server and fixed ports. The two sides are run in turn, A B B A ..., and compared by the ratio of
each pair. The cluster is up before its MLflow server answers; the server has a separate row.
Writes benchmarks/results/cluster_up.json and .md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pairs import HERE, in_turn, machine, spread, table, write

sys.path[:0] = [str(HERE.parent), str(HERE.parent / "deploy")]

from lab import hosts  # noqa: E402 - found by the line above
from lab.layout import LOGIN, Lab, LabError, default_folder, load  # noqa: E402

from raysuite.measure.environment import environment  # noqa: E402

NODES, USER, NAME = 3, "hpc1", "timed"
GOAL = 1.3
"""The largest acceptable median ratio."""
SITE = f"""\
kind: slurm
partition: lab
time: 00:30:00
nodes: {NODES}
cpus_per_node: 2
start_timeout_seconds: 900
"""
UP = f"""\
raysuite cluster up --site ./timed.yaml --name {NAME}
eval "$(raysuite cluster status {NAME} --env)"
ray job submit --no-wait -- true
"""
BARE = f"bash {HERE}/bare_ray.sh"
PARTS = {
    "command": "the command, until it has asked SLURM",
    "waiting": "SLURM, until the job runs",
    "step": "srun, until the first agent runs",
    "python": "the agent's imports",
    "ray": "Ray's head, until its dashboard answers",
    "rest": "until the command has ended",
    "job": "`cluster status --env` and `ray job submit`",
}


def main(pairs: int) -> int:
    """Run the pairs, print and write the figures; return 1 if the median ratio misses the goal."""
    lab = load(default_folder())
    if lab is None or len(lab.hosts) < NODES:
        sys.exit(
            f"there is no lab of {NODES} hosts in {default_folder()}; `make lab-up` starts one"
        )
    _as_user(lab, "cat > timed.yaml", SITE)
    sides = {"raysuite": partial(_one, lab, _raysuite), "bare": partial(_one, lab, _bare)}
    result = _summary(
        in_turn(
            pairs,
            sides,
            lambda pair: ", ".join(f"{side} {each['all']:.1f} s" for side, each in pair.items()),
        )
    )
    write("cluster_up", result, _markdown(result))
    return 0 if result["ratio"]["median"] <= GOAL else 1


def _one(lab: Lab, side: Any) -> dict[str, float]:
    """Wait for idle hosts, run a side, and return its seconds and the 1-minute load before it."""
    _until_idle(lab)
    load_before = os.getloadavg()[0]
    seconds: dict[str, float] = side(lab)
    return {**seconds, "load_before": load_before}


def _raysuite(lab: Lab) -> dict[str, float]:
    began = time.time()
    try:
        _as_user(lab, f"set -e\n{UP}")
        whole = time.time() - began
        folder = lab.home(USER) / ".raysuite" / "clusters" / NAME
        parts = json.loads((folder / "timings.json").read_text())["seconds"]
        created = json.loads((folder / "cluster.json").read_text())["created"]
        head = _head_with_mlflow(folder)
    finally:
        _as_user(lab, f"raysuite cluster down {NAME} --grace 0")
    up = created - began + parts["all"]
    found = {"command": created - began + parts["submit"]}
    found |= {name: parts[name] for name in ("waiting", "step")}
    found |= {name: head[name] for name in ("python", "ray")}
    rest = up - sum(found.values())
    return {**found, "rest": rest, "job": whole - up, "mlflow": head["mlflow"], "all": whole}


def _head_with_mlflow(folder: Path) -> dict[str, float]:
    """Wait for the head's MLflow server; return the seconds of each phase of the head's start."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        nodes = [json.loads(path.read_text()) for path in (folder / "nodes").glob("*.json")]
        seconds: dict[str, float] = next(each["seconds"] for each in nodes if each["index"] == 0)
        if "mlflow" in seconds:
            return seconds
        time.sleep(0.5)
    sys.exit("the MLflow server does not answer")


def _bare(lab: Lab) -> dict[str, float]:
    began = time.time()
    try:
        _as_user(lab, BARE)
        return {"all": time.time() - began}
    finally:
        _as_user(lab, f"scancel --user {USER}")


def _as_user(lab: Lab, script: str, text: str = "") -> str:
    command = hosts.entering(lab, LOGIN, ["bash", "-c", script], USER)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def _until_idle(lab: Lab) -> None:
    """Wait until SLURM has no job and counts all hosts as idle."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        busy = _as_user(lab, "squeue -h; sinfo -h -p lab -o %T | grep -v '^idle$' || true")
        if not busy.strip():
            hosts.wait_ready(lab)
            return
        time.sleep(0.5)
    sys.exit("the lab's hosts do not become idle")


def _summary(measured: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    ratios = [pair["raysuite"]["all"] / pair["bare"]["all"] for pair in measured]
    return {
        "site": SITE,
        "pairs": measured,
        "ratio": spread(ratios),
        "seconds": {
            side: spread([pair[side]["all"] for pair in measured]) for side in ("raysuite", "bare")
        },
        "parts": {name: spread([pair["raysuite"][name] for pair in measured]) for name in PARTS},
        "mlflow": spread([pair["raysuite"]["mlflow"] for pair in measured]),
        "load": spread([each["load_before"] for pair in measured for each in pair.values()]),
        "environment": environment(),
    }


def _markdown(result: dict[str, Any]) -> str:
    facts, load = result["environment"], result["load"]
    lines = [
        "# What `raysuite cluster up` costs",
        "",
        "Seconds from `raysuite cluster up` until `ray job submit` was accepted, on "
        f"{NODES} hosts of the lab (docs/how-to/lab.md), beside bare `ray start` on the same hosts "
        f"(benchmarks/bare_ray.sh); {result['ratio']['n']} interleaved pairs. The hosts share one "
        "machine's CPUs: what overlaps on a site's nodes competes here.",
        "",
    ]
    rows = [(f"ratio, raysuite / bare (goal: at most {GOAL})", result["ratio"])]
    rows += [(f"seconds, {side}", each) for side, each in result["seconds"].items()]
    rows += [(f"- {PARTS[name]}", each) for name, each in result["parts"].items()]
    rows.append(("MLflow's server, from its start to its first answer", result["mlflow"]))
    lines += table(rows, 2)
    lines += [
        "",
        f"Load of the machine (1 minute) before each start: {load['min']:.1f} to "
        f"{load['max']:.1f}. {machine(facts, 'raysuite', 'ray', 'mlflow')}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
    except LabError as error:
        sys.exit(f"{error}")
