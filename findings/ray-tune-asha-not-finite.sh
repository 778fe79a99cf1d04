#!/usr/bin/env bash
# Ray Tune: ASHA lets trials whose loss is NaN train to the end, and a loss of infinity can save
# a worse trial from being stopped.
#
# Usually expected: a trial that has diverged is the worst of its rung, and ASHA stops it there
# first; the others are stopped or go on as they would without it.
# Seen on 2026-11-29 with Ray 2.60.0 (one trial at a time, each worse than those before, so that
# every trial after the first should stop at the first rung): the trial that reports NaN takes all
# of its steps, because NaN is not below the cutoff. A trial that reports infinity is stopped, but
# the next one goes on: the cutoff is a percentile between infinity and a finite value, which NumPy
# computes as NaN. Tune's own defaults do not end such a trial either.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  "ray[tune]==2.60.0" numpy==2.4.6

cat > "$work/asha.py" <<'PY'
import logging
import math
import sys

import numpy
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

print("Ray", ray.__version__, "NumPy", numpy.__version__)
STEPS = 4


def train(config):
    for _ in range(STEPS):
        tune.report({"loss": config["loss"]})


def steps_of(losses):
    """Return loss -> steps that its trial took, one trial after the other."""
    scheduler = ASHAScheduler(metric="loss", mode="min", max_t=STEPS, reduction_factor=4)
    found = tune.Tuner(
        train,
        param_space={"loss": tune.grid_search(losses)},
        tune_config=tune.TuneConfig(scheduler=scheduler, max_concurrent_trials=1),
        run_config=tune.RunConfig(storage_path=sys.argv[1], verbose=0),
    ).fit()
    return {str(each.config["loss"]): each.metrics["training_iteration"] for each in found}


ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
finite = steps_of([0.1, 0.2, 0.3, 0.4])
infinite = steps_of([0.1, math.inf, 0.3, 0.4])
undefined = steps_of([0.1, math.nan, 0.3, 0.4])
for seen in (finite, infinite, undefined):
    print("loss -> steps:", seen)

assert finite == {"0.1": 4, "0.2": 1, "0.3": 1, "0.4": 1}
assert infinite["inf"] == 1 and infinite["0.3"] == 4, "0.3 was stopped, as without a diverged trial"
assert undefined["nan"] == 4, "the trial with NaN was stopped"
print("as stated")
PY
RAY_AIR_NEW_OUTPUT=0 "$work/venv/bin/python" -W ignore "$work/asha.py" "$work/results" 2> "$work/log" \
  || { cat "$work/log" >&2; exit 1; }
