"""`raysuite bench loaders` as a user runs it."""

from __future__ import annotations

import json
import signal

import pytest

from raysuite.records.loader_rates import FILE, LoadingBench
from tests.integration.workplace import Workplace, until_ended
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

QUICK = ("--threads", "2", "--seconds", "0.2", "--batch", "32")
LOADERS = ("native", "synthetic")


@pytest.mark.thorough
def test_figures_files_and_mlflow(workplace: Workplace):
    chosen = [word for loader in LOADERS for word in ("--loader", loader)]
    command = workplace.run(
        *("raysuite", "bench", "loaders", "digits", *chosen, *QUICK, "--processes", "2"),
        *("--device", "cpu", "--repeats", "2", "--out", "out", "--json"),
    )
    told = json.loads(command.stdout)
    rows = {row["candidate"]: row for row in told["rows"]}
    assert len(rows) == 5
    for row in rows.values():
        assert row["failure"] == ""
        assert row["throughput"]["mean"] > 0
        assert len(row["throughput"]["values"]) == 2
    measured = LoadingBench.model_validate_json((workplace.folder / "out" / FILE).read_bytes())
    assert measured.complete
    assert measured.material is not None
    assert (measured.material.samples, measured.material.jpeg_share) == (1437, 0)
    for timing in measured.timings:
        assert timing.images >= 32
        assert timing.seconds >= 0.2
        assert timing.cpu_seconds > 0
    names = {file.name for file in (workplace.folder / "out").iterdir()}
    assert names == {
        *("loaders.html", "loaders.json", "loaders.md"),
        *("loaders.pdf", "loaders.png", "loaders.svg"),
        "messages.log",
    }
    assert told["diagnosis"]["best"] in rows

    best = told["diagnosis"]["best"].replace(" · ", " ")
    values = workplace.query(f"select value from metrics where key = 'images_per_second/{best}'")
    assert len(values) == 2
    mean = workplace.query(f"select value from metrics where key = 'mean_images_per_second/{best}'")
    expected = rows[told["diagnosis"]["best"]]["throughput"]["mean"]
    assert mean == [(pytest.approx(expected),)]
    params = dict(workplace.query("select key, value from params"))
    assert (params["data.name"], params["batch"]) == ("digits", "32")
    stored = list((workplace.folder / "mlartifacts").rglob("loaders.html"))
    assert len(stored) == 1


@pytest.mark.thorough
def test_an_interrupt_keeps_what_was_measured_and_leaves_no_process(workplace: Workplace):
    command = workplace.start(
        *("raysuite", "bench", "loaders", "digits", "--loader", "native", *QUICK),
        *("--processes", "2", "--repeats", "100", "--out", "halfway", "--no-mlflow"),
    )
    file = workplace.folder / "halfway" / FILE

    def some() -> bool:
        return (
            file.exists() and len(LoadingBench.model_validate_json(file.read_bytes()).timings) > 2
        )

    until(lambda: some() or command.process.poll() is not None)
    family = command.family()
    command.process.send_signal(signal.SIGINT)
    assert command.wait() == 130, command.stdout + command.stderr
    assert "Traceback" not in command.stderr
    assert "The measurement was interrupted" in command.stdout
    measured = LoadingBench.model_validate_json(file.read_bytes())
    assert not measured.complete
    assert (workplace.folder / "halfway" / "loaders.html").exists()
    until_ended(family)


DEADLY = """\
import multiprocessing, os, signal
import numpy as np

class Set:
    classes = ("a",)

    def __init__(self, split):
        pass

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros((8, 8, 3), np.uint8), 0
"""


def test_a_candidate_whose_process_dies_is_a_row_and_the_others_go_on(workplace: Workplace):
    workplace.write("deadly.py", DEADLY)
    command = workplace.run(
        *("raysuite", "bench", "loaders", "deadly:Set", "--image-size", "8", *QUICK),
        *("--loader", "native", "--loader", "synthetic", "--processes", "0", "--repeats", "1"),
        *("--out", "deadly", "--json", "--no-mlflow"),
        code=1,  # no loader that reads delivered anything
    )
    rows = {row["candidate"]: row for row in json.loads(command.stdout)["rows"]}
    assert len(rows["synthetic"]["throughput"]["values"]) == 1
    for name in ("native · 2 threads", "reading alone · 2 threads"):
        assert "its process was killed (exit code -9)" in rows[name]["failure"]
