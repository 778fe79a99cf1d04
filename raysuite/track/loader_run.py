"""Write a comparison of loaders into MLflow, as one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raysuite.records.loader_rates import LoadingBench, loading_rows
from raysuite.track.entries import (
    MOST_PARAM,
    MOST_TAG,
    SOURCE,
    Point,
    flatten,
    milliseconds,
    mlflow_key,
    variant_key,
)
from raysuite.track.store import Store, quiet, tracking_address, without_password
from raysuite.track.sync import one_line

EXPERIMENT = "loaders"


def log_loaders(bench: LoadingBench, folder: Path, tracking_uri: str | None = None) -> str:
    """Write a comparison and the files of its folder into MLflow; return the error, or "".

    The plan becomes params, the environment becomes tags, and each timing becomes a step of the
    metric `images_per_second/CANDIDATE`.
    """
    uri = tracking_address(tracking_uri)
    try:
        with quiet():
            store = Store(uri, EXPERIMENT)
            begin = milliseconds(bench.time)
            tags = {"raysuite.kind": "loaders", **SOURCE}
            for key, value in flatten(bench.environment, "env."):
                tags[mlflow_key(key)] = str(value)[:MOST_TAG]
            run_id = store.create(bench.name, begin, tags).info.run_id
            params = {
                mlflow_key(key): str(value)[:MOST_PARAM] for key, value in flatten(bench.plan)
            }
            store.log(run_id, list(_points(bench)), params)
            for file in sorted(folder.iterdir()):
                if file.is_file():
                    store.client.log_artifact(run_id, str(file))
            store.finish(run_id, "FINISHED" if bench.complete else "KILLED", None)
    except Exception as error:  # a store may raise anything; the figures are on disk
        return f"MLflow at {without_password(uri)} could not be written: {one_line(error)}"
    return ""


def _points(bench: LoadingBench) -> Iterator[Point]:
    when = milliseconds(bench.time)
    for timing in bench.timings:
        rate = timing.images / timing.seconds
        name = variant_key(timing.candidate)
        yield Point(f"images_per_second/{name}", rate, when, timing.repeat)
    for row in loading_rows(bench):
        name = variant_key(row.candidate.name)
        if row.throughput is not None:
            yield Point(f"mean_images_per_second/{name}", row.throughput.mean, when, 0)
        if row.of_decoding is not None:
            yield Point(f"share_of_decoding/{name}", row.of_decoding.value, when, 0)
