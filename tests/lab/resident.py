"""What a user does on her own cluster before others try to get at it; prints where it is, as JSON.

Run as a program with the variables of `raysuite cluster status --env`: a job that keeps objects on
both nodes, two that may be stopped, and a run with an artifact in MLflow.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

WORD = "for-my-eyes-only"
"""In the job's log, in an object of the store and in the artifact."""
KEEP = f"""
import pathlib, time, numpy, ray
ray.init(log_to_driver=False)
class Keeper:
    def __init__(self):
        self.kept = ray.put(numpy.frombuffer(b"{WORD} " * 100_000, dtype="u1"))
    def at(self):
        return ray.get_runtime_context().get_node_id()
keeper = ray.remote(Keeper).options(num_cpus=0, scheduling_strategy="SPREAD")
keepers = [keeper.remote() for _ in range(2)]
print("{WORD}", len(set(ray.get([each.at.remote() for each in keepers]))), "nodes", flush=True)
pathlib.Path("keeping").touch()
time.sleep(3600)
"""
PATIENCE_S = 240


def main() -> None:
    import mlflow
    from ray.job_submission import JobSubmissionClient

    jobs = JobSubmissionClient()
    Path("keep.py").write_text(KEEP, "utf-8")
    job = jobs.submit_job(entrypoint="python keep.py")
    victims = [jobs.submit_job(entrypoint="sleep 3600") for _ in range(2)]
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("private")
    run = client.create_run(experiment).info.run_id
    client.log_metric(run, "metric", 1.0)
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "note")
        note.write_text(WORD, "utf-8")
        client.log_artifact(run, str(note))
    deadline = time.monotonic() + PATIENCE_S
    while not Path("keeping").exists() or not _run(jobs, victims):
        if time.monotonic() > deadline:
            raise TimeoutError(jobs.get_job_logs(job))
        time.sleep(0.5)
    found = {"job": job, "victims": victims, "experiment": experiment, "run": run}
    found["artifact"] = note.name
    print(json.dumps(found))


def _run(jobs: JobSubmissionClient, names: list[str]) -> bool:
    return all(jobs.get_job_status(name) == "RUNNING" for name in names)


if __name__ == "__main__":
    main()
