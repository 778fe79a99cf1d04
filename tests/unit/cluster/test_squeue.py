"""How often SLURM's controller is asked, counted by a squeue that writes down its calls."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from raysuite.cluster import backend, teardown
from raysuite.cluster.client import NotStartedError, Progress, wait
from raysuite.cluster.files import Cluster
from raysuite.cluster.folder import ClusterFolder, prepare
from raysuite.cluster.status import all_status
from raysuite.spec.site import SlurmSite


class Controller:
    """Answers `squeue` with the rows of a file and counts the calls; the clock is a number."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rows, self._calls, self.seconds = folder / "rows", folder / "calls", 0.0
        program = folder / "squeue"
        program.write_text(f'#!/bin/sh\necho "$*" >>{self._calls}\ncat {self._rows}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        clock = SimpleNamespace(monotonic=lambda: self.seconds, sleep=self._sleep)
        for module in (backend, teardown):
            monkeypatch.setattr(module, "time", clock)

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def says(self, *rows: str) -> None:
        self._rows.write_text("".join(f"{row}\n" for row in rows))

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))
    return Controller(tmp_path, monkeypatch)


def made(name: str, job: str) -> ClusterFolder:
    site = SlurmSite(name="far", nodes=2)
    return prepare(Cluster(name=name, site=site, nodes=2, created=1.0, working_folder="/", job=job))


def test_a_waiting_job_is_asked_about_at_most_six_times_a_minute(controller: Controller) -> None:
    folder, asked = made("mine", "17"), []
    controller.says("17|PENDING|Priority|")

    def look(progress: Progress) -> None:
        asked.append((controller.seconds, len(controller.calls)))
        if controller.seconds > 600:
            controller.says()  # cancelled

    with pytest.raises(NotStartedError):
        wait(folder, look)
    assert max(calls for seconds, calls in asked if seconds <= 60) <= 6
    assert max(calls for seconds, calls in asked if seconds <= 600) <= 26, "each 30 s later on"
    assert controller.seconds <= 640, "its end is seen"


def test_the_start_of_the_job_is_seen_in_its_log(controller: Controller) -> None:
    folder, phases = made("mine", "17"), {}
    controller.says("17|PENDING|Priority|")

    def look(progress: Progress) -> None:
        phases[controller.seconds] = progress.job.phase
        if controller.seconds == 100:
            controller.says("17|RUNNING|None|n[1-2]")
            folder.slurm_log.write_text("raysuite: job 17\n")
        elif controller.seconds > 110:
            controller.says()

    with pytest.raises(NotStartedError):
        wait(folder, look)
    assert phases[100] == "waiting"
    assert phases[100.5] == "running"


def test_an_ending_job_is_asked_about_less_and_less(controller: Controller) -> None:
    folder = made("mine", "17")
    controller.says("17|COMPLETING|None|n1")
    assert not teardown._gone(folder, folder.cluster(), 60.0)
    assert len(controller.calls) <= 12


def test_one_query_for_all_clusters(controller: Controller) -> None:
    for name, job in (("one", "17"), ("two", "18"), ("three", "19")):
        made(name, job)
    controller.says("18|PENDING|Priority|", "17|RUNNING|None|n[1-2]")
    states = {status.cluster.name: status.state for status in all_status()}
    assert states == {"one": "starting", "two": "waiting", "three": "stale"}
    assert len(controller.calls) == 1
