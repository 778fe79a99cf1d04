"""The verbs that only print: plan, --help, --version; and the exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from raysuite import __version__
from raysuite.cli import VERBS, _Verbs, app, load_all, main
from raysuite.cli.plan import bindings
from raysuite.errors import GateError, UserError
from raysuite.measure.topology import Core, Topology
from raysuite.plan import RunPlan, make_plans
from raysuite.spec import read_document
from tests.fake_results import write_results
from tests.fake_sweeps import write_sweep

ROOT = Path(__file__).parents[3]
ROOM = "free disk space, or give a writable folder"
QUICKSTART = str(ROOT / "experiments" / "quickstart.yaml")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def test_plan_shows_every_run_with_its_numbers() -> None:
    text = run("plan", QUICKSTART, "--gpus", "0", "seed=3")
    rows = [line.split() for line in text.splitlines() if re.match(r" *\d+ +\S+ · ", line)]
    assert len(rows) == 18
    assert " ".join(rows[5]) == "6 horovod · dali · 2 workers 1 warm 3"
    assert (
        "each run: workers 2 x 1 CPU · batch 64 · micro x acc. 32 x 1 · peak rate 0.05 · "
        "steps/epoch 23 · steps 92 · epochs 4\n"
    ) in text
    assert "18 runs in 1 group of warm workers; at most 2 CPUs and 0 GPUs at a time" in text


def test_plan_on_gpus() -> None:
    given = ("strategy=ddp", "loader=native", "repeats=1", "matrix.resources.workers=[1, 2]")
    text = run("plan", QUICKSTART, "--gpus", "2", *given)
    assert "2 x 1 GPU + 1 CPU" in text
    assert "2 runs in 1 group of warm workers; at most 2 CPUs and 2 GPUs at a time" in text


def test_plan_shows_the_cpus_of_workers_where_there_are_several_memory_nodes() -> None:
    cores = tuple(Core((cpu, cpu + 4), cpu // 2, 0) for cpu in range(4))
    plans = make_plans(read_document(Path(QUICKSTART)), gpus=0)
    (line,) = bindings(plans, Topology(cores, {}))
    assert line == "2 workers on this host would be bound to CPUs 0-1,4-5 | 2-3,6-7"
    assert list(bindings(plans, Topology(cores[:2], {}))) == []
    bound = read_document(Path(QUICKSTART), ["resources.binding=['0-1', '999']"])
    assert list(bindings(make_plans(bound, gpus=0), Topology(cores, {}))) == []


def test_plan_as_json_is_the_plans() -> None:
    found = json.loads(run("plan", QUICKSTART, "--gpus", "0", "--json"))
    expected = make_plans(read_document(Path(QUICKSTART)), gpus=0)
    assert [RunPlan.model_validate(plan) for plan in found] == expected


def test_plan_as_json_is_only_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSUITE_DATA", str(tmp_path))
    file = tmp_path / "x.yaml"
    file.write_text(
        "name: x\nmodel: resnet20\ndata: mnist\ntraining: {epochs: 1, global_batch: 60}\n"
        "matrix: {strategy: [ddp, fsdp]}\n"
    )
    words = ["plan", str(file), "--gpus", "0", "strategy=ddp"]
    (plan,) = json.loads(run(*words, "--json"))
    assert plan["steps_per_epoch"] == 1000
    *_, ended, official = run(*words).splitlines()
    assert ended.startswith("strategy=ddp on the command line replaces")
    used = "official counts are used for data sets that are not on this machine: "
    assert official == f"{used}mnist as idx"


def test_schema_is_a_schema() -> None:
    found = json.loads(run("plan", "--schema", "spec"))
    jsonschema.Draft202012Validator.check_schema(found)
    assert "matrix" in found["properties"]
    assert "RunStarted" in json.loads(run("plan", "--schema", "records"))["$defs"]


def test_version() -> None:
    assert run("--version") == f"raysuite {__version__}\n"


def test_every_verb_has_help_with_examples_and_values_in_capitals() -> None:
    listing = run("--help")

    def assert_helps(command: Any, words: list[str]) -> None:
        for name, below in getattr(command, "commands", {}).items():
            assert_helps(below, [*words, name])
        if not hasattr(command, "commands"):
            text = run(*words, "--help")
            assert re.search(r"^  Examples?:", text, re.M), f"{words}: no examples"
            assert not re.search(r"<\w", text.partition("Arguments:")[2]), words
            usage = text.partition("\n\n")[0].partition("[OPTIONS]")[2]
            assert not re.search(r"[{]|\[\[", usage), usage

    for verb, command in load_all().commands.items():
        assert re.search(rf"^  {verb} ", listing, re.M)
        assert command.get_short_help_str(limit=200) == VERBS[verb]
        assert_helps(command, [verb])


@pytest.mark.integration
@pytest.mark.parametrize("words", ["--help", "--version", "pla"])
def test_no_verb_is_imported_before_it_is_called(words: str) -> None:
    code = f"import sys, raysuite.cli as cli\nsys.argv[1:] = [{words!r}]\n"
    code += "try:\n    cli.main()\nfinally:\n    print(sorted(set(sys.modules) & set(map("
    code += "'raysuite.cli.{}'.format, cli.VERBS))))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.stdout.splitlines()[-1] == "[]", found.stderr


def test_completion_knows_verbs_and_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(line: str) -> set[str]:
        monkeypatch.setenv("_RAYSUITE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
        return set(CliRunner().invoke(app, prog_name="raysuite").stdout.split())

    assert offered("raysuite pr") == {"predict"}
    assert offered("raysuite ") == set(VERBS)
    assert {"--gpus", "--deep"} <= offered("raysuite plan --")
    assert {"up", "down"} <= offered("raysuite cluster ")


@pytest.mark.integration
@pytest.mark.parametrize("arguments", [["--help"], ["plan", QUICKSTART], ["plan", "--schema=spec"]])
def test_light_verbs_load_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, raysuite.cli\n"
        f"sys.argv = ['raysuite', *{arguments!r}]\n"
        "try:\n    raysuite.cli.main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "print(sorted({'torch', 'ray', 'mlflow', 'numpy', 'pandas'} & set(sys.modules)))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("redirected", "written"),
    [("", b"ddp ? native"), ("--json", b'"description": "\\u00b7"'), (">&-", b"")],
)
def test_a_verb_prints_to_a_closed_stream_and_in_an_encoding_of_few_characters(
    redirected: str, written: bytes
) -> None:
    words = f"-m raysuite plan {QUICKSTART} description=· {redirected}"
    found = subprocess.run(
        f"{sys.executable} {words}",
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        shell=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stderr) == (0, b"")
    assert written in found.stdout


@pytest.mark.integration
@pytest.mark.parametrize("module", ["raysuite.cli", "raysuite.cluster.agent.__main__"])
def test_what_a_cluster_starts_with_leaves_the_language_of_experiments_alone(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "print(sorted({'raysuite.spec.experiment', 'raysuite.records'} & set(sys.modules)))\n"
    )
    found = subprocess.check_output([sys.executable, "-P", "-c", code], text=True, timeout=60)
    assert found == "[]\n"


def failing(error: BaseException) -> Callable[..., None]:
    def invoke(*_: object) -> None:
        raise error

    return invoke


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UserError("do this instead"), 2, "error: do this instead\n"),
        (GateError("ranks differ"), 1, "error: ranks differ\n"),
        (OSError(28, "full"), 1, f"error: [Errno 28] full; {ROOM}\n"),
        (PermissionError(13, "closed", "/x"), 1, f"error: [Errno 13] closed: '/x'; {ROOM}\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, text: str
) -> None:
    monkeypatch.setattr(_Verbs.__mro__[1], "invoke", failing(error))
    result = CliRunner().invoke(app, ["plan"])
    assert result.exit_code == code
    assert result.stderr == text


def test_the_working_folder_is_searched_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["first"])
    monkeypatch.setattr(sys, "argv", ["raysuite", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert sys.path == ["first", str(tmp_path)]


@pytest.mark.parametrize("out", [None, "page"])
def test_a_report_names_the_files_that_it_wrote(
    out: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sweep(Path("made"), trials=3)
    told = run("report", "made", "--no-pictures", *(["--out", out] if out else []))
    folder = out or "made"
    assert f"\n{folder}/report.html\n" in told
    assert f"\n{folder}/best.yaml  (run it: raysuite run {folder}/best.yaml)\n" in told
    assert Path(folder, "best.yaml").is_file()
    assert not Path(folder, "plots").exists()
    assert [str(page) for page in Path().rglob("report.html")] == [f"{folder}/report.html"]


def test_damaged_plans_are_told(tmp_path: Path) -> None:
    good, bad = write_results(tmp_path / "good"), write_results(tmp_path / "bad")
    (bad.folder / "plan.json").write_text('[{"run_id": "')
    done = CliRunner().invoke(app, ["report", str(bad.folder)])
    assert (done.exit_code, "plan.json is damaged" in done.stderr) == (2, True)
    done = CliRunner().invoke(
        app, ["report", str(good.folder), str(bad.folder), "--history", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert "plan.json is damaged" in done.stderr
    assert json.loads(done.stdout) == []
