"""A script in a spec: placeholders, what it replaces, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raysuite.errors import SpecError
from raysuite.plan import RunPlan, make_plans
from raysuite.spec import parse_document
from raysuite.spec.script import ScriptOptions, fill

NAMES = {"workers": 4, "nodes": 2}


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("{256 // workers}", "64"),
        ("{256 / workers}", "64"),
        ("{ 256 / workers }", "64"),
        ("{0.1 * workers}", "0.4"),
        ("lr={1e-3 * (workers + nodes)}", "lr=0.006"),
        ("{-workers % 3}", "2"),
        ("a{workers}b{nodes}", "a4b2"),
        ('{"zero": {"stage": 1}}', '{"zero": {"stage": 1}}'),
        ("{{workers}}", "{workers}"),
        ("{}", "{}"),
        ("{workers ** 9}", "{workers ** 9}"),
        ("{open('x')}", "{open('x')}"),
        ("{workers.real}", "{workers.real}"),
        ("{True + 1}", "{True + 1}"),
        ("{+nodes - -1}", "3"),
        ("{7 / nodes}", "3.5"),
        ("{1e15}", "1000000000000000"),
        ("{" + "1+" * 99 + "1}", "100"),
        ("{" + "1+" * 100 + "1}", "{" + "1+" * 100 + "1}"),
    ],
)
def test_placeholders_are_arithmetic_and_other_braces_stay(given: str, filled: str) -> None:
    assert fill(given, NAMES) == filled


@pytest.mark.parametrize("given", ["{256 // worker}", "{1 // 0}", "{9e99 * 9}", "{1e300*1e300}"])
def test_wrong_placeholders_are_named(given: str) -> None:
    with pytest.raises(ValueError, match=r"\{"):
        fill(given, NAMES)


def test_arguments_of_a_matrix_follow_the_command() -> None:
    script = ScriptOptions(
        command="train.py --lr '{0.1 * workers}'",
        arguments={"batch": "{64 // workers}", "amp": True, "none": None, "off": False, "seed": 0},
        environment={"N": "{nodes}", "OFF": None, "EMPTY": "", "ZERO": 0},
        samples_per_step="16 * workers",
    )
    assert script.words(NAMES) == [
        "train.py",
        "--lr",
        "0.4",
        "--batch",
        "16",
        "--amp",
        "--seed",
        "0",
    ]
    assert script.variables(NAMES) == {"N": "2", "EMPTY": "", "ZERO": "0"}
    assert script.samples(NAMES) == 64
    for given, samples in ((None, None), (7, 7), ("workers / 4", 1), ("workers + nodes", 6)):
        found = ScriptOptions(command="train.py", samples_per_step=given)
        assert found.samples(NAMES) == samples
    for given in ("workers / 8", "workers // 8", "{workers}"):
        with pytest.raises(ValueError, match="samples_per_step"):
            ScriptOptions(command="train.py", samples_per_step=given).samples(NAMES)


def plans(text: str) -> list[RunPlan]:
    return make_plans(parse_document(text, "spec.yaml"), 0)


SPEC = """
name: own
script: {{command: [{file}, --batch, "{{64 // workers}}"]}}
repeats: 2
matrix:
  resources.workers: [1, 2]
  script.arguments.lr: [0.1, 0.2]
"""


def test_runs_of_a_script_are_planned_in_interleaved_rounds(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.touch()
    made = plans(SPEC.format(file=file))
    key = "script.arguments.lr"
    seen = [(plan.repeat, plan.workers, plan.label[key]) for plan in made]
    assert seen[:4] == [(0, 1, 0.1), (0, 1, 0.2), (0, 2, 0.1), (0, 2, 0.2)]
    assert sorted(seen[4:]) == sorted((1, *rest) for _, *rest in seen[:4])
    assert len({plan.run_id for plan in made}) == 8
    assert [RunPlan.model_validate(plan.model_dump(mode="json")) for plan in made] == made


def test_the_guides_spec_is_planned_as_the_guide_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    guide = Path(__file__).parents[3] / "docs" / "how-to" / "own-script.md"
    (spec,) = re.findall(r"```yaml\n(.*?)```", guide.read_text("utf-8"), re.DOTALL)
    scripts = {plan.workers: plan.spec.script for plan in plans(spec)}
    words = {
        workers: each and each.words({"workers": workers}) for workers, each in scripts.items()
    }
    assert words == {1: ["train.py", "--batch", "64"], 2: ["train.py", "--batch", "32"]}


@pytest.mark.parametrize(
    "wrong",
    [
        "script: {command: [absent.py]}",
        "script: {command: []}",
        "script: {command: [--batch]}",
        "script: {command: [FILE, '{64 // worker}']}",
        "script: {command: [FILE], samples_per_step: many}",
        "script: {command: [FILE], samples_per_step: 0}",
        "script: {command: [FILE], samples_per_step: -8}",
        "script: {command: [FILE], samples_per_step: 3 / 2}",
        "script: {command: [FILE]}\nmodel: resnet20",
        "script: {command: [FILE]}\nstrategy: ddp",
        "script: {command: [FILE], comand: 1}",
        "script: {command: [FILE], environment: {'A=': 1}}",
        "script: {command: [FILE], environment: {'': 1}}",
        "script: {command: [FILE], environment: {MASTER_PORT: 29500}}",
        "script: {command: 'FILE --batch {64 // workers}'}",
        'script: {command: "FILE \'a"}',
        "script: {command: ' '}",
        "script: {command: [-m]}",
        "script: {command: [FILE]}\ndata: digits",
        "script: {command: [FILE]}\ntraining: {epochs: 2}",
        "script: {command: [FILE]}\nloader: memory",
        "script: {command: [FILE]}\noptimizer: adamw",
        "script: {command: [FILE]}\nschedule: cosine",
        "script: {command: [FILE]}\nsynthetic_data: {mnist: {images: 9}}",
    ],
)
def test_mistakes_in_a_script_are_those_of_a_spec(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.touch()
    with pytest.raises(SpecError):
        plans(f"name: own\n{wrong.replace('FILE', str(file))}")


def test_all_blocks_that_a_script_replaces_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    blocks = "model: resnet20\nstrategy: ddp\nschedule: constant"
    with pytest.raises(SpecError, match="be combined with model, strategy, schedule;"):
        plans(f"name: own\nscript: {{command: [{tmp_path}/train.py]}}\n{blocks}")


def test_blocks_beside_a_script_may_be_empty(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.touch()
    script = f"name: own\nscript: {{command: [{file}]}}\n"
    blocks = "search:\nsynthetic_data: {}\n"
    [plain], [written] = plans(script), plans(script + blocks)
    assert written.spec == plain.spec
    spec = plain.spec.model_dump(mode="json")
    assert spec["model"]["name"] == spec["data"]["name"] == "script:main"
