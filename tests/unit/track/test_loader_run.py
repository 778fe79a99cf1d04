"""A comparison of loaders in MLflow, as one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysuite.track.entries import variant_key
from raysuite.track.loader_run import EXPERIMENT, log_loaders
from raysuite.track.store import Store
from tests.fake_loading import fake_bench

SPEEDS = {"native · 1 thread": ((2.0, 4.0), 1.0), "decoding alone · 1 thread": ((6.0,), 1.0)}


@pytest.mark.parametrize(("complete", "status"), [(True, "FINISHED"), (False, "KILLED")])
def test_each_timing_is_a_step_and_each_mean_a_final_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool, status: str
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    bench = fake_bench(SPEEDS).model_copy(update={"complete": complete})
    folder = tmp_path / "bench"
    (folder / "plots").mkdir(parents=True)
    file = bench.save(folder)
    assert log_loaders(bench, folder, uri) == ""
    store = Store(uri, EXPERIMENT)
    [run] = store.client.search_runs([store.experiment_id])
    assert (run.info.run_name, run.info.status) == ("image_folder", status)
    assert run.info.start_time == 1_800_000_000_000
    assert (run.data.tags["raysuite.kind"], run.data.tags["env.cpu.usable_cores"]) == (
        "loaders",
        "2",
    )
    assert (run.data.params["batch"], run.data.params["data.image_size"]) == ("64", "224")
    key = "images_per_second/native 1 thread"
    points = store.client.get_metric_history(run.info.run_id, key)
    assert [(each.step, each.value, each.timestamp) for each in points] == [
        (0, 2.0, 1_800_000_000_000),
        (1, 4.0, 1_800_000_000_000),
    ]
    whole = {key: value for key, value in run.data.metrics.items() if not key.startswith("images")}
    assert whole == {
        "mean_images_per_second/native 1 thread": 3.0,
        f"mean_images_per_second/{variant_key('decoding alone · 1 thread')}": 6.0,
        "share_of_decoding/native 1 thread": 0.5,
    }
    assert [each.path for each in store.client.list_artifacts(run.info.run_id)] == [file.name]
