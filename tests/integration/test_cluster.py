"""`raysuite run` on a Ray cluster that is there already: runs that fail, one that is stopped."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from PIL import Image

from raysuite.records import EpochFinished, GateVerdict, RunFailed, RunStarted
from tests.integration.workplace import Workplace, until_ended
from tests.marks import SLOW_MARKS

pytestmark = [*SLOW_MARKS, pytest.mark.timeout(900)]

SPEC = """\
name: joined
model: own:Net
data: {name: image_folder, path: images, image_size: 8}
training: {epochs: 4, global_batch: 4}
resources: {device: cpu, workers: 2}
matrix:
  strategy, model.name:
  - [{name: custom, target: "own:Unsynchronized"}, own:Net]
  - [ddp, own:Raising]
  - [ddp, own:Holding]
"""
PER_CLASS = {"train": 12, "val": 2}
"""Images, so that an epoch has six steps."""


def make_images(folder: Path) -> None:
    """Dark and light ones."""
    for split, count in PER_CLASS.items():
        for name, least in (("dark", 0), ("light", 90)):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                shade = 10 * number + least
                file = folder / split / name / f"{number}.png"
                Image.new("RGB", (8, 8), (shade, shade, shade)).save(file)


@pytest.mark.thorough
def test_failed_runs_leave_the_others_alone_and_sigterm_frees_the_workers(
    workplace: Workplace, cluster: dict[str, str]
) -> None:
    """Data and models lie in the user's folder; the cluster began in another."""
    make_images(workplace.folder / "images")
    workplace.write("joined.yaml", SPEC)
    workplace.write("hold-torch-0", "")
    words = ["raysuite", "run", "joined.yaml", "--no-mlflow", "--stop-within", "5"]
    command = workplace.start(*words, **cluster)
    worker = workplace.held(command)  # it stays in a step, and so does not stop by itself
    command.process.send_signal(signal.SIGTERM)
    assert command.wait(180) == 75, command.stdout + command.stderr
    assert "Traceback" not in command.stdout + command.stderr
    assert "SIGTERM received" not in command.stderr  # with a stack of Ray's core
    until_ended([worker], 180)

    results = workplace.results()
    assert f"raysuite run --resume-from {results.folder}" in command.stderr
    gated, raised, stopped = (results.records(plan["run_id"]) for plan in results.plans())
    (verdict,) = [record for record in gated if isinstance(record, GateVerdict)]
    assert not verdict.passed
    assert not verdict.ranks_equal
    (end,) = [record for record in gated if isinstance(record, RunFailed)]
    assert (end, end.reason) == (gated[-1], "gate")
    (end,) = [record for record in raised if isinstance(record, RunFailed)]
    assert (end, end.reason) == (raised[-1], "error")
    assert end.message.startswith("rank 1: RuntimeError: ")
    assert end.detail.rstrip().endswith(end.message.removeprefix("rank 1: "))
    assert [type(record) for record in stopped] == [
        RunStarted,
        GateVerdict,
        EpochFinished,
        EpochFinished,
    ]
    assert results.end_of(results.plans()[2]["run_id"]) is None
