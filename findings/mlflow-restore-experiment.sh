#!/usr/bin/env bash
# MLflow: restoring an experiment also restores the runs that had been deleted before it.
#
# Usually expected: `restore_experiment` undoes `delete_experiment`; a run that was deleted by
# itself, earlier, stays deleted.
# Seen on 2026-11-27 with MLflow 3.17.2 and an SQLite store: every run of the experiment is active
# afterwards, failed and discarded runs too, and appears in `search_runs` and in its best values.
# The run does not record which of the two calls deleted it.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  mlflow==3.17.2

cd "$work"
venv/bin/python - <<'PY'
import logging

import mlflow

print("MLflow", mlflow.__version__)
logging.disable(logging.INFO)
mlflow.set_tracking_uri("sqlite:///store.db")
client = mlflow.MlflowClient()
experiment = client.create_experiment("study")
runs = {name: client.create_run(experiment, run_name=name).info.run_id for name in ("kept", "bad")}
client.log_metric(runs["kept"], "accuracy", 0.7)
client.log_metric(runs["bad"], "accuracy", 0.9)


def names():
    found = client.search_runs([experiment], order_by=["metrics.accuracy DESC"])
    return [run.info.run_name for run in found]


client.delete_run(runs["bad"])
before = names()
client.delete_experiment(experiment)
client.restore_experiment(experiment)
after = names()
print("runs, best first: before", before, "after", after)

assert before == ["kept"]
assert after == ["bad", "kept"]
print("as stated")
PY
