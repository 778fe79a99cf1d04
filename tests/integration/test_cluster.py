"""`raysuite run` on a Ray cluster that is there already; runs that fail beside runs that do not."""

from __future__ import annotations

import json
import signal

import pytest
from PIL import Image

from raysuite.records import GateVerdict, RunFailed, RunFinished
from tests.integration.workplace import Workplace, alive, until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

OWN_IMAGES = """\
name: joined
model: own:Net
data: {name: image_folder, path: images, image_size: 8}
training: {epochs: 1, global_batch: 4}
resources: {device: cpu}
"""
FAILING = """\
name: failing
model: own:Net
data: digits
training: {epochs: 1, global_batch: 240}
resources: {device: cpu, workers: 2}
matrix:
  strategy: [{name: custom, target: own:Unsynchronized}, ddp]
  model.name: [own:Raising, own:Net]
"""
HELD = """\
name: held
model: own:Holding
data: digits
training: {epochs: 4, global_batch: 240}
resources: {device: cpu}
"""


def test_it_is_joined_where_the_user_stands(workplace: Workplace, cluster: dict[str, str]) -> None:
    for split in ("train", "val"):
        for name in ("dark", "light"):
            folder = workplace.folder / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(4):
                shade = 40 * number + (90 if name == "light" else 0)
                Image.new("RGB", (8, 8), (shade, shade, shade)).save(folder / f"{number}.png")
    workplace.write("joined.yaml", OWN_IMAGES)
    done = workplace.run("raysuite", "run", "joined.yaml", "--quiet", **cluster)
    assert (done.stdout, done.stderr) == ("", "")
    results = workplace.results()
    end = results.end_of(results.plans()[0]["run_id"])
    assert isinstance(end, RunFinished)


def test_a_run_that_fails_leaves_the_others_alone(
    workplace: Workplace, cluster: dict[str, str]
) -> None:
    workplace.write("failing.yaml", FAILING)
    words = ["raysuite", "run", "failing.yaml", "--no-mlflow"]
    done = workplace.run(*words, code=1, **cluster)
    assert "Traceback" not in done.stdout + done.stderr
    results = workplace.results()
    ends = [results.end_of(plan["run_id"]) for plan in results.plans()]
    kinds = [end.reason if isinstance(end, RunFailed) else end.kind for end in ends]
    assert kinds == ["gate", "gate", "error", "run_finished"]

    for plan in results.plans()[:2]:
        verdicts = [r for r in results.records(plan["run_id"]) if isinstance(r, GateVerdict)]
        assert [verdict.passed for verdict in verdicts] == [False]
        assert "the ranks hold different weights" in verdicts[0].message
    message = "rank 1: RuntimeError: the skip connection does not fit its peer"
    assert isinstance(ends[2], RunFailed)
    assert ends[2].message == message
    assert ends[2].detail.rstrip().endswith(message.removeprefix("rank 1: "))
    failed = [r for r in results.records(ends[2].run_id) if isinstance(r, RunFailed)]
    assert len(failed) == 1
    assert f"failed: {message}" in done.stdout

    rows = json.loads((results.folder / "rows.json").read_text("utf-8"))["rows"]
    assert [row["gate"] for row in rows] == ["failed", "failed", "passed", "passed"]
    speeds = [row["throughput_images_per_s"]["values"] for row in rows]
    assert speeds[:3] == [[], [], []]
    assert message in (results.folder / "report.html").read_text("utf-8")


def test_sigterm_gives_the_cluster_its_workers_back(
    workplace: Workplace, cluster: dict[str, str]
) -> None:
    workplace.write("held.yaml", HELD)
    workplace.write("hold-torch-0", "")
    words = ["raysuite", "run", "held.yaml", "strategy=ddp", "--no-mlflow", "--stop-within", "5"]
    command = workplace.start(*words, **cluster)
    worker = workplace.held(command)
    command.process.send_signal(signal.SIGTERM)
    assert command.wait(180) == 75, command.stdout + command.stderr
    assert "did not stop in time: their last checkpoint counts" in command.stderr
    assert "raysuite run --resume-from " in command.stderr
    assert "Traceback" not in command.stderr
    until(lambda: not alive([worker]), 180)
