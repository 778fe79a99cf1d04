"""Options of `raysuite run` that do not go together, and what is passed on to a continuation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import raysuite.cli
from raysuite.__main__ import command
from raysuite.cli import app
from raysuite.cli.driver import Request, print_how_to_resume, print_what_changed
from raysuite.records import Results
from raysuite.spec import parse_document

BASE: dict[str, Any] = {
    "spec": Path("x y.yaml"),
    "overrides": [],
    "scale": None,
    "address": None,
    "root": Path("results"),
    "resume": False,
    "resume_from": None,
    "retry_failed": False,
    "mlflow": True,
    "tracking_uri": None,
    "quiet": False,
    "as_json": False,
    "stop_within_s": 60.0,
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--resume-from RESULTS"),
        (["--dry-run"], "none was given"),
        (["x.yaml", "--resume-from", "results"], "leave SPEC and KEY=VALUE out"),
        (["--resume", "--resume-from", "results"], "one of them"),
        (["x.yaml", "repeats=2", "--resume"], "leave KEY=VALUE out"),
        (["x.yaml", "--retry-failed"], "--retry-failed goes with --resume or --resume-from"),
        (["--resume-from", "nowhere"], "a results folder"),
        (["x.yaml", "--address", "http://10.0.0.1:8265"], "-- raysuite run"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_ray_was_sent_is_no_place_for_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_0"
    upload.mkdir(parents=True)
    monkeypatch.chdir(upload)
    for words in (["x.yaml"], ["--resume-from", "results"]):
        done = CliRunner().invoke(app, ["run", *words])
        assert done.exit_code == 2
        assert "submit without --working-dir" in done.stderr
    assert "x.yaml" in CliRunner().invoke(app, ["run", "x.yaml", "--results", "/shared"]).stderr


def test_an_address_of_jobs_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "https://10.0.0.1:8265")
    done = CliRunner().invoke(app, ["run", "x.yaml"])
    assert done.exit_code == 2
    assert "no Ray can be joined there" in done.stderr


def test_ctrl_c_while_the_command_line_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(raysuite.cli, "main", interrupted)
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    print_how_to_resume("sweep", Results(Path("my results")))
    assert "raysuite sweep --resume-from 'my results'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ("name: x\noptimizer: {lr: 0.1}  # as before\n", []),
        ("name: x\noptimizer: {lr: 0.2}\n", ["optimizer.lr from 0.1 to 0.2"]),
        ("name: x\noptimizer: {lr: 0.1}\nrepeats: 3\n", ["repeats from None to 3"]),
    ],
)
def test_an_edited_spec_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], now: str, words: list[str]
) -> None:
    (tmp_path / "spec.yaml").write_text("name: x\noptimizer: {lr: 0.1}\n")
    print_what_changed(Results(tmp_path), parse_document(now, "mine.yaml"))
    said = capsys.readouterr().err
    assert [each for each in words if each not in said] == []
    assert bool(said) == bool(words)


def test_what_holds_for_the_continuation_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://node1:5000")
    within = ("--stop-within", "60")
    assert Request(**BASE).arguments() == within
    given = {**BASE, "mlflow": False, "as_json": True}
    assert Request(**given).arguments() == ("--json", "--no-mlflow", *within)
    # the next head's server has another address, which its environment names
    inherited = {**BASE, "tracking_uri": "http://node1:5000"}
    assert Request(**inherited).arguments() == within
    own = {**BASE, "quiet": True, "tracking_uri": "sqlite:///own.db"}
    assert Request(**own).arguments() == ("--quiet", "--tracking-uri", "sqlite:///own.db", *within)
    secret = {**BASE, "tracking_uri": "http://me:secret@host"}
    assert Request(**secret).arguments() == within
