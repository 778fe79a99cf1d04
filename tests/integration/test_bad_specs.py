"""What `raysuite run` refuses: one clear message, exit code 2, and nothing left in results/."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysuite.cli import app
from raysuite.errors import SpecError
from raysuite.orchestrate import preflight
from raysuite.orchestrate.capacity import Capacity, Node
from raysuite.plan import make_plans
from raysuite.spec import read_document
from tests.integration import own
from tests.integration.workplace import Workplace

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

LEAST = """\
name: bad
model: own:Net
data: digits
strategy: ddp
training: {epochs: 1, global_batch: 240}
resources: {device: cpu, workers: 1}
"""
TWO_CPUS = Capacity((Node(cpus=2, gpus=0),))
BAD = [
    pytest.param(
        LEAST.replace("workers: 1", "workers: 3"),
        (6, "resources.workers"),
        ["3 workers x 1 CPU", "2 CPUs and 0 GPUs on 1 node(s)", "at most 2"],
        id="more workers than the cluster has",
    ),
    pytest.param(
        LEAST + "matrix: {resources.workers: [1, 3], loader: [native, dali]}\n",
        (7, "resources.workers"),
        ["3 workers x 1 CPU"],
        id="one of the matrix",
    ),
    pytest.param(
        LEAST.replace("ddp", "{name: custom, target: 'nowhere:Ours'}"),
        (4, "strategy.target"),
        ["'nowhere:Ours'", "no module named 'nowhere'"],
        id="no such strategy",
    ),
    pytest.param(
        LEAST.replace("digits", "{name: image_folder, path: nothing-here, image_size: 8}"),
        (3, "data.path"),
        ["nothing-here"],
        id="missing data set",
    ),
]


@pytest.mark.parametrize(("spec", "place", "words"), BAD)
def test_one_mistake_at_its_place(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spec: str,
    place: tuple[int, str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copy(str(own.__file__), "own.py")
    Path("broken.py").write_text("Net = Nett\n")
    Path("bad.yaml").write_text(spec)
    document = read_document(Path("bad.yaml"))
    with pytest.raises(SpecError) as refused:
        preflight.check(make_plans(document, gpus=0), TWO_CPUS, document)
    (mistake,) = refused.value.mistakes
    assert str(mistake).startswith(f"bad.yaml:{place[0]}: {place[1]}: ")
    assert [word for word in words if word not in str(mistake)] == []


def test_what_one_batch_says_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(str(own.__file__), "own.py")
    Path("ends.py").write_text("import os\nprint('so long')\nos._exit(3)\n")
    Path("exits.py").write_text("import sys\nsys.exit(0)\n")
    models = ["own:Net", "own:Nett", "exits:Net", "ends:Net"]
    Path("bad.yaml").write_text(LEAST + f"matrix: {{model: {models}}}\n")
    monkeypatch.setattr("raysuite.orchestrate.ray_cluster.connect", lambda _: nullcontext(TWO_CPUS))
    refused = CliRunner().invoke(app, ["run", "bad.yaml", "--no-mlflow"])
    assert refused.exit_code == 2
    heading, *mistakes = refused.stderr.splitlines()
    assert heading == "error: 3 mistakes"
    expected = ["has no 'Nett'", "sys.exit", "ended with exit status 3: so long"]
    for mistake, words in zip(mistakes, expected, strict=True):
        assert mistake.strip().startswith("bad.yaml:7: model.name: ")
        assert words in mistake
    assert not Path("results").exists()


@pytest.mark.thorough
def test_a_whole_command_asks_the_cluster_that_it_joins(
    workplace: Workplace, cluster: dict[str, str]
) -> None:
    workplace.write("bad.yaml", LEAST.replace("workers: 1", "workers: 3"))
    refused = workplace.run("raysuite", "run", "bad.yaml", code=2, **cluster)
    assert refused.stdout == ""
    heading, mistake = refused.stderr.splitlines()
    assert heading == "error: 1 mistake"
    assert mistake.strip().startswith("bad.yaml:6: resources.workers: ")
    assert not (workplace.folder / "results").exists()


def test_a_cluster_that_does_not_answer(workplace: Workplace) -> None:
    workplace.write("bad.yaml", LEAST)
    refused = workplace.run("raysuite", "run", "bad.yaml", "--address", "127.0.0.1:9", code=2)
    assert refused.stdout == ""
    [message] = refused.stderr.splitlines()
    assert message.startswith("error: ")
    assert "'127.0.0.1:9'" in message
    assert not (workplace.folder / "results").exists()


@pytest.fixture
def _as_before() -> Iterator[None]:
    """What joining a cluster adds to this process's variables is taken back."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize(
    ("option", "variable"), [("auto", None), (None, "auto"), ("nonsense", None)]
)
def test_what_is_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str | None, variable: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    Path("good.yaml").write_text(LEAST.replace("own:Net", "resnet20"))
    # MLflow would be opened in a thread that outlives the command
    words = ["run", "good.yaml", "--no-mlflow", *(["--address", option] if option else [])]
    refused = CliRunner().invoke(app, words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Traceback" not in refused.stderr
    assert f"'{option or variable}'" in refused.stderr
    assert not Path("results").exists()
