"""What is reported of the process that tries one batch of each plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysuite.errors import Mistake, SpecError
from raysuite.orchestrate import preflight
from raysuite.orchestrate.preflight import _FOUND, _OUTPUT, _raise_what_was_found
from raysuite.plan import RunPlan, make_plans
from raysuite.spec import parse_document

SPEC = """\
name: x
data: digits
training: {epochs: 1, global_batch: 8}
matrix:
  model: [resnet20, resnet32, resnet44]
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([[], [], []], []),
        ([[], [["training.global_batch", "too small"]], []], [("training.global_batch", 3)]),
        ([[["model.name", "no such"]]], [("model.name", 5), ("model.name", 5)]),
    ],
    ids=["none", "one", "the process ended at the second"],
)
def test_mistakes_have_their_lines_also_where_a_network_ends_the_process(
    tmp_path: Path, lines: list[Any], expected: list[tuple[str, int]]
) -> None:
    document = parse_document(SPEC, "x.yaml")
    (tmp_path / _FOUND).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / _OUTPUT).write_text("1\n2\n3\nkilled\n")
    process: Any = SimpleNamespace(wait=lambda: -9)
    given = (process, make_plans(document, gpus=0), tmp_path, document)
    if not expected:
        _raise_what_was_found(*given)
        return
    with pytest.raises(SpecError) as raised:
        _raise_what_was_found(*given)
    assert [(each.key, each.line) for each in raised.value.mistakes] == expected
    assert ("ended with exit status -9: 2 | 3 | killed" in str(raised.value)) == (len(lines) < 3)


SMALL = "name: x\ndata: digits\nmodel: resnet20\ntraining: {epochs: 1, global_batch: 1024}\n"


def plan_of(text: str = "") -> RunPlan:
    return make_plans(parse_document(SMALL + text, "x.yaml"), gpus=0)[0]


def test_each_missing_part_is_a_mistake_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = "strategy: horovod\nloader: dali\noptimizer: schedule_free\ntrack: [wandb]\n"
    spec = plan_of(blocks).spec
    parts = {
        "strategy": "horovod",
        "loader": "dali",
        "optimizer": "schedulefree",
        "track": "wandb",
    }
    for absent in ([*parts], ["optimizer"], ["track"]):
        names = {parts[key] for key in absent}
        monkeypatch.setattr(preflight, "installed", lambda name, names=names: name not in names)
        found = preflight.lacking_parts(spec)
        assert [mistake.key for mistake in found] == absent
        assert all(
            mistake.message.startswith(f"{parts[key]} is not installed")
            for key, mistake in zip(absent, found, strict=True)
        )


@pytest.mark.parametrize(
    ("there", "variable", "mode", "lacks"),
    [
        ("", None, "default", True),
        ("", None, "'off'", False),
        ("g++", None, "default", False),
        ("clang++", None, "default", False),
        ("clang++", "icpx", "default", False),
        ("icpx", "icpx", "default", False),
        ("g++", "icpx", "default", True),
    ],
)
def test_compiled_runs_need_the_compiler_of_the_environment_or_clang(
    there: str,
    variable: str | None,
    mode: str,
    lacks: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    if variable:
        monkeypatch.setenv("CXX", variable)
    if there:
        (tmp_path / there).touch(mode=0o755)
    text = SMALL.replace("1024}", f"1024, compile: {mode}}}")
    [plan] = make_plans(parse_document(text, "x.yaml"), gpus=0)
    found = preflight.lacking_parts(plan.spec)
    assert [mistake.key for mistake in found] == ["training.compile"] * lacks


@pytest.mark.parametrize(
    ("elsewhere", "address", "sized"),
    [(False, "", True), (True, "", False), (False, "10.0.0.1:6379", False)],
)
def test_the_size_of_this_machine_counts_for_runs_on_it_and_missing_files_for_all(
    elsewhere: bool, address: str, sized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    text = SMALL.replace("resnet20", "{name: resnet20, weights: absent.pt}")
    document = parse_document(f"{text}strategy: ddp\nresources: {{workers: 1024}}\n", "x.yaml")
    found = preflight._wrong_here(make_plans(document, gpus=0), document, elsewhere)
    hint = "to plan for another cluster: raysuite plan --gpus N"
    assert [(each.key, each.line, each.message.endswith(hint)) for each in found] == [
        ("model.weights", 3, False),
        *[("resources.workers", 6, True)] * sized,
    ]
    if found:
        with pytest.raises(SpecError) as raised:
            preflight.check_early(make_plans(document, gpus=0), document, elsewhere)
        assert list(raised.value.mistakes) == found


@pytest.mark.parametrize(("deep", "tried"), [(True, 2), (False, 1)])
def test_mistakes_of_this_machine_and_of_the_batches_are_raised_together(
    deep: bool, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own network is imported also without a batch."""
    text = SMALL.replace("model: resnet20\n", "loader: dali\n")
    models = "matrix: {model: [resnet20, 'tests.tiny_model:Tiny']}\n"
    document = parse_document(f"{text}{models}", "x.yaml")
    given: list[Any] = []

    @contextmanager
    def dry_batch(
        plans: Sequence[RunPlan], _: object, batches: bool
    ) -> Iterator[Callable[[], None]]:
        given.extend([len(plans), plans[-1].spec.model.name, batches])

        def check() -> None:
            raise SpecError([Mistake("too small", key="model.name")])

        yield check

    monkeypatch.setattr(preflight, "dry_batch", dry_batch)
    monkeypatch.setattr(preflight, "installed", lambda name: name != "dali")
    with pytest.raises(SpecError) as raised:
        preflight.check_here(make_plans(document, gpus=0), document, deep)
    assert {each.key for each in raised.value.mistakes} == {"loader", "model.name"}
    assert given == [tried, "tests.tiny_model:Tiny", deep]


@pytest.mark.parametrize(("elsewhere", "keys"), [(False, ["loader"]), (True, [])])
def test_a_spec_that_is_wrong_also_names_what_this_machine_lacks(
    elsewhere: bool, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "installed", lambda name: name != "dali")
    text = f"{SMALL}loader: dali\nstrategy: ddp\nresources: {{workers: 3}}\n"
    with pytest.raises(SpecError) as raised:
        preflight.plans_here(parse_document(text, "x.yaml"), 0, elsewhere)
    first, *others = raised.value.mistakes
    assert "1024" in first.message
    assert [each.key for each in others] == keys


@pytest.mark.parametrize("batches", [True, False])
def test_one_batch_is_tried_of_each_network_and_of_no_script(
    batches: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    tried: list[int] = []
    ended: list[str] = []

    def popen(words: list[str], stdin: Any, **given: Any) -> Any:
        begun.append(words)
        tried.append(len(json.loads(stdin.read())))
        return SimpleNamespace(kill=lambda: ended.append("kill"), wait=lambda: ended.append("wait"))

    monkeypatch.setattr("subprocess.Popen", popen)
    networks = f"{SMALL}matrix: {{model: [resnet20, resnet32], seed: [0, 1]}}\n"
    plans = make_plans(parse_document(networks.replace("model: resnet20\n", ""), "x.yaml"), gpus=0)
    (script := tmp_path / "train.py").touch()
    text = f"name: own\nscript: {{command: [{script}]}}\nresources: {{device: cpu}}\n"
    own = make_plans(parse_document(text, "x.yaml"), gpus=0)
    with preflight.dry_batch(own, None, batches) as check:
        check()
    assert begun == []
    with preflight.dry_batch([*own, *plans], None, batches):
        assert ended == []
    assert (tried, ended) == ([2], ["kill", "wait"])
    assert ("--imports" in begun[0]) == (not batches)
