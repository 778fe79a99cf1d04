"""Where the figures come from: every file with its digest, seeds, verdicts, environments."""

from __future__ import annotations

import hashlib
import html
import json
import subprocess
from dataclasses import replace

import pytest

from raysuite.records import Results, RunFailed, results_figures
from raysuite.report import build
from raysuite.report.provenance import files_sheet, nodes_sheet, provenance, times_sheet
from tests.fake_results import ENVIRONMENT, TWELVE_ROWS, write_results

FEW = TWELVE_ROWS.replace("[ddp, horovod, deepspeed]", "[ddp]")
COMMAND = "raysuite run 'my <b>spec</b>.yaml' --scale laptop"


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Results:
    made = write_results(
        tmp_path_factory.mktemp("results"),
        FEW,
        2,
        fails={1: RunFailed(run_id="", reason="gate", message="differs")},
        missing=[7],
    )
    made.add_command(COMMAND)
    made.add_command(f"{COMMAND} --resume")
    build(made, pictures=False, baseline="native")
    return made


@pytest.fixture(scope="module")
def data(results) -> dict:
    return json.loads((results.folder / "provenance.json").read_text("utf-8"))


def test_digests_are_those_of_the_files(results, data):
    files = [data["spec"], data["plan"], *(run["journal"] for run in data["runs"][:7])]
    for file in files:
        content = (results.folder / file["file"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
        assert file["bytes"] == len(content)
    assert data["runs"][7]["journal"]["sha256"] is None
    told = subprocess.run(
        ["sha256sum", "spec.yaml"], cwd=results.folder, capture_output=True, text=True, check=True
    )
    assert told.stdout.split()[0] == data["spec"]["sha256"]


def test_runs_have_seeds_verdicts_and_their_environment(results, data):
    plans = results.plans()
    assert [run["seed"] for run in data["runs"]] == [plan["seed"] for plan in plans]
    assert {run["seed"] for run in data["runs"]} == {0, 1}
    assert data["runs"][1]["gate"] == "failed"
    assert data["runs"][1]["verdict"]["error"] == 0.31
    assert data["runs"][0]["verdict"]["rule"].startswith("ranks equal")
    assert data["environments"] == [ENVIRONMENT], "one environment, told once"
    assert [run["environment"] for run in data["runs"]] == [0] * 7 + [None]
    assert data["runs"][0]["started"] == "2023-11-14T22:13:20+00:00"


def test_a_resumed_run_has_its_attempts_and_where_it_went_on(results):
    first, *others = results_figures(results)
    resumed = {"first_epoch": 2, "first_step": 50}
    ended = first.end.model_copy(update={"time": 90061.5})
    started = first.started.model_copy(update=resumed)
    again = replace(first, started=started, end=ended, attempts=3)
    environment = again.started.environment | {"fingerprint": "cafe", "time": 5.0}
    moved = replace(
        others[2], started=again.started.model_copy(update={"environment": environment})
    )
    later = replace(
        moved, started=moved.started.model_copy(update={"environment": environment | {"time": 6.0}})
    )
    runs = [again, others[0], moved, later]
    found = provenance(results.folder, runs, {}, {run.run_id: run.name for run in runs})
    keys = ("attempts", "taken_up_at_epoch", "taken_up_at_step", "environment")
    assert [tuple(run[key] for key in keys) for run in found["runs"]] == [
        (3, 2, 50, 0),
        (1, 0, 0, 0),
        (1, 2, 50, 1),
        (1, 2, 50, 1),
    ]
    assert found["environments"][1]["fingerprint"] == "cafe"
    assert found["runs"][0]["ended"] == "1970-01-02T01:01:01+00:00"


def test_commands_and_options(data):
    assert data["commands"] == [COMMAND, f"{COMMAND} --resume"]
    assert data["report"]["options"] == {"baseline": "native"}


def test_the_page_tells_it(results, data):
    page = (results.folder / "report.html").read_text("utf-8")
    section = page.partition('<section id="provenance"')[2].partition("</section>")[0]
    assert data["runs"][0]["journal"]["sha256"] in section
    assert html.escape(COMMAND, quote=False) in section.replace("&#39;", "'")
    assert "--baseline native" in section
    assert "<b>spec" not in section


def test_every_file_is_in_the_table(data):
    assert len(files_sheet(data).cells) == 2 + 8


def test_wall_times_are_those_of_the_phases_and_parts(results):
    assert times_sheet(provenance(results.folder, [], {}, {})) is None, "of no command"
    seconds = {"ray": 1.5, "runs": 20.25, "report": 2.0}
    results.write_timings([{"began": 0.0, "seconds": seconds}])
    runs = results_figures(results)
    data = provenance(results.folder, runs, {}, {run.run_id: run.name for run in runs})
    assert data["timings"][0]["seconds"] == {"ray": 1.5, "runs": 20.25}
    sheet = times_sheet(data)
    assert sheet.header[:3] == ("What", "ray", "runs")
    assert sheet.cells[0][1:3] == ("1.50", "20.25")
    (results.folder / "timings.json").unlink()


def test_each_node_of_the_last_command_has_the_seconds_of_its_start(results):
    commands = [{"began": 0.0, "seconds": {"ray": 1.5}}]
    results.write_timings(commands)
    assert nodes_sheet(provenance(results.folder, [], {}, {})) is None, "not in a cluster"
    nodes = {"n2": {"python": 2.0, "head": 7.5, "ray": 20.25}, "n1": {"python": 2.5, "ray": 28.0}}
    started = {"image": 9.0, "python": 1.0, "ray": 2.0}
    results.write_timings([{**commands[0], "nodes": {"n0": started}}])
    sheet = nodes_sheet(provenance(results.folder, [], {}, {}))
    assert (sheet.header, len(sheet.notes)) == (("Node", "Image", "Imports", "Ray"), 1)
    earlier = {**commands[0], "nodes": {"n0": {"python": 1.0, "ray": 2.0}}}
    results.write_timings([earlier, {**commands[0], "nodes": nodes}, *commands])
    sheet = nodes_sheet(provenance(results.folder, [], {}, {}))
    assert (sheet.header, sheet.notes) == (("Node", "Imports", "Wait for the head", "Ray"), ())
    assert sheet.cells == (("n1", "2.50", "–", "28.00"), ("n2", "2.00", "7.50", "20.25"))
    (results.folder / "timings.json").unlink()
