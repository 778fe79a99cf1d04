"""`raysuite cluster site`: what it writes, what it shows, and what it refuses."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from raysuite.cli import app
from raysuite.cli.cluster import ask_all, new
from raysuite.cluster.sites import find_site
from raysuite.spec.site import SlurmSite


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_HOME", str(tmp_path))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cluster", "site", *arguments])


def test_a_new_site_is_found_by_its_name(tmp_path: Path) -> None:
    settings = ("--set", "time=24:00:00", "--set", "modules=[GCC/12, CUDA/12.4]")
    result = run("new", "mine", "--yes", "--partition", "gpu", "--account", "12", *settings)
    assert result.exit_code == 0, result.output
    file = tmp_path / "sites" / "mine.yaml"
    assert file.read_text("utf-8") == result.stdout
    assert f"wrote {file}; next: raysuite doctor --site mine" in result.stderr
    site = find_site("mine")
    assert isinstance(site, SlurmSite)
    assert (site.name, site.partition, site.account) == ("mine", "gpu", "12")
    assert (site.time, site.modules) == ("24:00:00", ("GCC/12", "CUDA/12.4"))
    assert site.exclusive, "from slurm-generic"


def test_it_begins_with_another_site() -> None:
    result = run("new", "mine", "--from", "juwels-booster", "--yes", "--set", "nodes=8")
    assert result.exit_code == 0, result.output
    site = find_site("mine")
    assert isinstance(site, SlurmSite)
    assert (site.nodes, site.gpus_per_node, site.partition) == (8, 4, "booster")


def test_with_yes_nothing_is_asked_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("raysuite.cli.cluster.ask_all", lambda *_: {"partition": "asked"})
    for yes, partition in ((True, None), (False, "asked")):
        new("mine", yes=yes, force=True)
        site = find_site("mine")
        assert isinstance(site, SlurmSite)
        assert site.partition == partition


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    result = run("new", "mine", "--yes", "--dry-run")
    assert (result.exit_code, "kind: slurm" in result.stdout) == (0, True)
    assert list(tmp_path.iterdir()) == []


def test_a_site_that_is_there_is_kept() -> None:
    assert run("new", "mine", "--yes").exit_code == 0
    result = run("new", "mine", "--yes", "--partition", "other")
    assert result.exit_code == 2
    assert "already exists" in result.stderr
    assert run("new", "mine", "--yes", "--partition", "other", "--force").exit_code == 0
    assert "partition: other" in run("show", "mine").stdout


def test_all_sites_are_listed_those_with_mistakes_too(tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "bad.yaml").write_text("kind: slurm\nnodes: 0\n")
    rows = json.loads(run("show", "--json").stdout)
    kinds = {row["name"]: row["kind"] for row in rows}
    assert kinds == {
        "bad": "?",
        **dict.fromkeys(("alps-clariden", "jupiter-booster", "juwels-booster"), "slurm"),
        **dict.fromkeys(("lab", "perlmutter", "slurm-generic"), "slurm"),
        "local": "local",
        "polaris": "hosts",
    }
    assert "untested" in run("show").stdout.lower()


def test_a_site_is_shown_with_its_defaults() -> None:
    values = json.loads(run("show", "juwels-booster", "--json").stdout)
    assert (values["gpus_per_node"], values["scratch"]) == (4, "/tmp")


def test_questions_are_asked_again_until_the_answer_is_valid(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = ["gpu", "-", "soon", "2:00:00", "0", "2-4", "", "4", "", "ib0"]
    texts += ["GCC/12, CUDA/12.4", "/scratch", "sif", "/images/a.sif"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(texts)))
    found = ask_all("slurm", {"partition": "old"})
    assert found == {
        "partition": "gpu",
        "account": None,
        "time": "2:00:00",
        "nodes": "2-4",
        "cpus_per_node": None,
        "gpus_per_node": 4,
        "memory_per_node": None,
        "interface": "ib0",
        "modules": ["GCC/12", "CUDA/12.4"],
        "scratch": "/scratch",
        "image": "/images/a.sif",
    }
    assert "got 'soon'" in capfd.readouterr().err


def test_an_answer_that_is_left_empty_is_the_value_of_the_site_it_begins_with(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {"modules": ("GCC/12", "CUDA"), "nodes": 4, "scratch": "/old", "image": "/a.sif"}
    monkeypatch.setattr("sys.stdin", io.StringIO("\n" * 10 + "-\n"))
    found = {key: value for key, value in ask_all("slurm", given).items() if value is not None}
    assert found == {"modules": ["GCC/12", "CUDA"], "nodes": 4, "scratch": "/old"}
    monkeypatch.setattr("sys.stdin", io.StringIO("-\n\n"))
    assert ask_all("local", given) == {"scratch": None, "image": "/a.sif"}
    said = capfd.readouterr().err
    assert said.count("An empty answer keeps the value in brackets; - leaves a key out.") == 2
    assert "Apptainer image (a path) [/a.sif]:" in said
