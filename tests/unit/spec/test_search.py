"""The `search` section: what may stand there, and every mistake at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from raysuite.errors import Mistake, SpecError
from raysuite.plan import make_plans
from raysuite.spec import Document, ExperimentSpec, load_spec, parse_document, read_document
from raysuite.spec.search import Dimension, SearchOptions, holds
from raysuite.spec.search_check import CHANGED, can_change, read_search

BASE = """\
name: a
model: resnet20
data: digits
training: {epochs: 1, global_batch: 8}
"""
SPACE = """\
search:
  trials: 4
  space:
    optimizer.lr: {loguniform: [0.01, 1.0]}
    strategy: {choice: [ddp, {name: deepspeed, overlap_comm: true}]}
    strategy.zero_stage: {choice: [0, 1], when: {strategy: deepspeed}}
"""


def document(text: str) -> Document:
    return parse_document(BASE + text, "x.yaml")


def mistakes(text: str) -> tuple[Mistake, ...]:
    with pytest.raises(SpecError) as caught:
        read_search(document(text))
    return caught.value.mistakes


def test_a_section() -> None:
    search = read_search(document(SPACE))
    assert search.wanted == ("accuracy",)
    assert (search.searcher.name, search.scheduler.name) == ("random", "none")
    assert search.space["optimizer.lr"].kind == "loguniform"
    assert search.space["optimizer.lr"].arguments == [0.01, 1.0]
    assert SearchOptions.model_validate(search.model_dump(mode="json")) == search


def test_goals_survive_json() -> None:
    text = SPACE + "  goals: [accuracy, throughput]\n"
    search = read_search(document(text))
    assert search.wanted == ("accuracy", "throughput")
    assert SearchOptions.model_validate_json(search.model_dump_json()) == search


def test_a_spec_without_a_search_says_nothing_of_it() -> None:
    """So that the ids of runs stay as they were."""
    spec = load_spec(document(""))
    assert "search" not in spec.model_dump(mode="json")
    whole = load_spec(document(SPACE))
    assert ExperimentSpec.model_validate_json(whole.model_dump_json()) == whole


@pytest.mark.parametrize(
    ("kind", "arguments", "steps", "edges"),
    [
        ("uniform", [-1.0, 1.0], [], [-1.0, -0.753088, 1.0]),
        ("loguniform", [2.0, 4.0], [], [2.0, 2.246912, 4.0]),
        ("quniform", [0, 0.3, 0.1], [0.0, 0.1, 0.2, 0.3], [0.0, 0.3]),
        ("quniform", [0.4, 1, 0.2], [0.4, 0.6, 0.8, 1.0], [0.4, 1.0]),
        ("qloguniform", [0.5, 2, 0.5], [0.5, 1.0, 1.5, 2.0], [0.5, 2.0]),
        ("normal", [0.5, 9], [], [0.5]),
        ("qrandn", [0.6, 9, 0.25], [], [0.5]),
        ("randint", [-1, 3], [-1, 0, 1, 2], [-1, 2]),
        ("lograndint", [1, 4], [1, 2, 3], [1, 3]),
        ("qrandint", [3, 9, 2], [4, 6, 8], [4, 8]),
        ("qrandint", [4, 8, 2], [4, 6, 8], [4, 8]),
        ("qrandint", [4, 6, 1], [4, 5], [4, 5]),
        ("qlograndint", [1, 9, 3], [3, 6, 9], [3, 9]),
        ("choice", ["a", 3, None], [], ["a", 3, None]),
    ],
)
def test_values_of_a_distribution_and_those_that_represent_all(
    kind: str, arguments: list[Any], steps: list[float], edges: list[Any]
) -> None:
    dimension = Dimension.model_validate({kind: arguments})
    assert list(dimension.steps()) == steps
    found = dimension.edges()
    assert found == (edges if kind == "choice" else pytest.approx(edges))


def test_a_value_is_moved_to_the_nearest_that_can_be_drawn() -> None:
    quarters = Dimension(qrandn=[0, 1, 0.25])
    assert [quarters.on_step(each) for each in (0.3, 0.4, -0.3)] == [0.25, 0.5, -0.25]
    evens = Dimension(qrandint=[1, 9, 2])
    assert [evens.on_step(each) for each in (0.0, 4.9, 5.1, 99.0)] == [2, 4, 6, 8]
    assert Dimension(uniform=[0, 1]).on_step(0.123) == 0.123


@pytest.mark.parametrize(
    ("kind", "arguments", "why"),
    [
        ("uniform", [1, 1], "low must be below high"),
        ("randint", [3, 3], "low must be below high"),
        ("loguniform", [0, 1], "low must be above 0"),
        ("qlograndint", [0, 4, 2], "low must be above 0"),
        ("quniform", [0, 1, 0], "the step must be above 0"),
        ("qrandint", [0, 1, 0], "the step must be above 0"),
        ("quniform", [0, 1, 0.3], "low and high must be multiples of the step"),
        ("quniform", [0.1, 1, 0.5], "low and high must be multiples of the step"),
        ("qrandint", [3, 5, 7], "no multiple of the step lies between low and high"),
        ("normal", [0, 0], "the standard deviation must be above 0"),
        ("qrandn", [0, 1, 0], "the step must be above 0"),
        ("qrandn", [0, 0, 0], "the standard deviation must be above 0"),
        (
            "choice",
            [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
            '{"a": 1, "b": 2} is listed twice; keep one',
        ),
        ("grid", [1, 2, 1], "1 is listed twice; keep one"),
    ],
)
def test_why_a_distribution_cannot_be(kind: str, arguments: list[Any], why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Dimension.model_validate({kind: arguments})
    [error] = caught.value.errors()
    assert error["msg"].startswith(f"Value error, {kind} [")
    assert error["msg"].endswith(f"]: {why}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("optimizer.lr: {}", "got none"),
        ("optimizer.lr: {uniform: [0, 1], choice: [1]}", "uniform and choice"),
        ("optimizer.lr: {uniform: [1, 1]}", "below high"),
        ("optimizer.lr: {loguniform: [0, 1]}", "above 0"),
        ("optimizer.lr: {quniform: [0, 1, 0]}", "step must be"),
        ("optimizer.lr: {quniform: [0, 1, 2]}", "multiples of the step"),
        ("optimizer.lr: {normal: [0, 0]}", "standard deviation"),
        ("seed: {randint: [3, 3]}", "below high"),
        ("seed: {choice: [3, 3]}", "3 is listed twice"),
        ("optimizer.lrr: {uniform: [0, 1]}", "'optimizer.lr'"),
        ("lr: {uniform: [0, 1]}", "'optimizer.lr'"),
        ("repeats: {choice: [1, 2]}", "whole experiment"),
        ("search.trials: {choice: [1, 2]}", "whole experiment"),
    ],
)
def test_one_dimension(line: str, words: str) -> None:
    (found,) = mistakes(f"search:\n  trials: 3\n  space:\n    {line}\n")
    assert words in found.message
    assert found.line == 8
    assert found.key == f"search.space.{line.partition(':')[0]}"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("optimizer.lr: {uniform: [0]}", "at least 2 items"),
        ("optimizer.lr: {uniform: [0, x]}", "got 'x'"),
        ("seed: {randint: [0.5, 3]}", "got 0.5"),
        ("optimizer.lr: {unifrom: [0, 1]}", "'uniform'"),
        ("optimizer.lr: 3", "got 3"),
    ],
)
def test_the_shape_of_a_dimension(line: str, words: str) -> None:
    found = mistakes(f"search:\n  trials: 3\n  space:\n    {line}\n")
    assert [mistake.line for mistake in found] == [8]
    assert words in found[0].message


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ("{strateggy: ddp}", "'strategy'"),
        ("{optimizer.lr: 0.1}", "`choice` or `grid`"),
        ("{strategy: horovod}", "valid: ddp, deepspeed"),
        ("{seed: 1}", "did you mean"),
    ],
)
def test_conditions_that_cannot_hold(when: str, words: str) -> None:
    text = SPACE.replace("{strategy: deepspeed}", when)
    (found,) = mistakes(text)
    assert (found.line, found.key.startswith("search.space.strategy.zero_stage.when.")) == (
        10,
        True,
    )
    assert words.replace("did you mean", "") in found.message


def test_conditions_in_a_circle() -> None:
    text = (
        "search:\n  trials: 3\n  space:\n"
        "    seed: {choice: [0, 1], when: {strategy: ddp}}\n"
        "    strategy: {choice: [ddp, horovod], when: {seed: 0}}\n"
    )
    (found,) = mistakes(text)
    first = {8: "seed", 9: "strategy"}[found.line or 0]
    assert found.key == f"search.space.{first}.when"
    assert f"circle: {first} -> " in found.message


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("  searcher: grid\n", "search.trials", "leave trials out"),
        ("  goal: time_to_accuracy\n", "search.goal", "needs training.target_accuracy"),
        ("  goals: [time_to_accuracy]\n", "search.goals", "needs training.target_accuracy"),
        ("  goals: [accuracy, throughput]\n  scheduler: asha\n", "search.scheduler", "one goal"),
        ("  goal: accuracy\n  goals: [accuracy]\n", "search", "one of them"),
        ("  goals: [accuracy, accuracy]\n", "search", "is listed twice"),
        ("  scheduler: bop\n", "search.scheduler", "none, asha, median, pbt"),
        ("  scheduler: pbt\n", "search.scheduler.interval_epochs", "is missing"),
        ("  scheduler: ahsa\n", "search.scheduler", "'asha'"),
        ("  scheduler: {name: asha, grace_epochs: 0}\n", "search.scheduler.grace_epochs", "1"),
        ("  searcher: {name: optuna, sampler: gp}\n", "search.searcher.sampler", "valid: tpe"),
        ("  goal: speed\n", "search.goal", "got 'speed'"),
        ("  deadline_s: 0\n", "search.deadline_s", "greater than 0"),
        ("  trails: 3\n", "search.trails", "'trials'"),
        ("  goals: [throughput, time_to_target]\n", "search.goals", "got time_to_target; valid"),
        ("matrix: {seed: [0, 1]}\n", "matrix", "`grid`"),
        ("repeats: 2\n", "repeats", "each trial once"),
    ],
)
def test_what_does_not_go_together(text: str, key: str, words: str) -> None:
    found = mistakes(SPACE + text)
    told = [mistake for mistake in found if words in mistake.message]
    assert [mistake.key for mistake in told] == [key]
    assert told[0].line is not None


@pytest.mark.parametrize(
    ("task", "goal", "training", "space", "keys"),
    [
        ("regression", "time_to_target", "target: 0.1", "", []),
        ("regression", "time_to_target", "target_accuracy: 0.1", "", ["search.goal"]),
        ("{name: regression}", "accuracy", "", "", ["search.goal"]),
        ("{options: {}}", "time_to_accuracy", "target: 0.1", "", ["search.goal"]),
        ("", "time_to_accuracy", "target_accuracy: 0.9", "", []),
        ("", "time_to_accuracy", "", "training.target_accuracy: {choice: [0.1]}", []),
        ("", "", "", "task: {choice: [regression]}", ["search.space.task"]),
        ("", "", "", "task.name: {choice: [regression]}", ["search.space.task.name"]),
    ],
)
def test_goals_are_those_of_the_task(
    task: str, goal: str, training: str, space: str, keys: list[str]
) -> None:
    text = SPACE + (f"    {space}\n" if space else "") + (f"  goal: {goal}\n" if goal else "")
    own = BASE.replace("global_batch: 8", f"global_batch: 8, {training}") + text
    own += f"task: {task}\n" if task else ""
    if keys:
        assert list(told(own)) == keys
    else:
        assert read_search(parse_document(own, "x.yaml")).wanted == (goal,)


def test_the_goal_of_a_task_without_classes_is_its_metric() -> None:
    found = read_search(document(SPACE + "task: regression\n"))
    assert (found.goal, found.wanted) == ("metric", ("metric",))


def test_a_billion_trials() -> None:
    (found,) = mistakes(SPACE.replace("trials: 4\n", "trials: 1000000000\n"))
    assert (found.key, "1,000,000,000 trials" in found.message) == ("search.space", True)
    lists = f"seed: {{choice: {[*range(101)]}}}, training.epochs: {{grid: {[*range(1, 101)]}}}"
    (found,) = mistakes(f"search: {{searcher: grid, space: {{{lists}}}}}\n")
    assert (found.key, "10,100 trials" in found.message) == ("search.space", True)


def test_a_grid_needs_lists_and_others_need_a_number() -> None:
    text = SPACE.replace("  trials: 4\n", "") + "  searcher: grid\n"
    (found,) = mistakes(text)
    assert "got loguniform" in found.message
    grid = "search: {searcher: grid, space: {seed: {choice: [0]}, training.epochs: {grid: [1]}}}\n"
    assert read_search(document(grid)).trials is None
    (found,) = mistakes(SPACE.replace("  trials: 4\n", ""))
    assert (found.key, "give `trials`" in found.message) == ("search.trials", True)
    (found,) = mistakes(
        SPACE.replace("[ddp,", "[single, ddp,") + "    seed: {grid: [0, 1]}\n  searcher: optuna\n"
    )
    assert "`choice`, not `grid`" in found.message


def test_all_mistakes_at_once() -> None:
    text = """\
search:
  space:
    optimizer.lr: {loguniform: [0, 1]}
    optimiser.lr: {uniform: [1, 0]}
    seed: {choice: [0], when: {strategy: ddp}}
  scheduler: ahsa
"""
    found = mistakes(text)
    assert [mistake.line for mistake in found] == [7, 8, 8, 9, 10]


@pytest.mark.parametrize("text", ["", "search: 3\n", "search:\n"])
def test_no_section(text: str) -> None:
    (found,) = mistakes(text)
    assert (found.key, "give the keys to vary" in found.message) == ("search", True)


def test_a_run_says_that_this_is_a_sweep() -> None:
    with pytest.raises(SpecError, match="use `raysuite sweep SPEC`") as caught:
        make_plans(document(SPACE), gpus=0)
    assert [(each.key, each.line) for each in caught.value.mistakes] == [("search", 5)]


def test_conditions() -> None:
    block = {"name": "deepspeed", "zero_stage": 1}
    assert holds({"strategy": "deepspeed"}, {"strategy": block})
    assert not holds({"strategy": "deepspeed"}, {"strategy": "ddp"})
    assert not holds({"strategy": "deepspeed"}, {})
    assert holds({}, {})
    assert not holds({"a": 1, "b": 2}, {"a": 1, "b": 3})


class TestKeysThatAreSet:
    def read(self, tmp_path: Path, *settings: str, scale: str | None = None) -> Document:
        file = tmp_path / "x.yaml"
        scales = "scales: {small: {search.trials: 2, search.space.optimizer.lr: {choice: [0.3]}}}\n"
        file.write_text(BASE + scales + SPACE, "utf-8")
        return read_document(file, settings, scale)

    def test_a_key_that_is_set_is_searched_no_longer(self, tmp_path: Path) -> None:
        found = self.read(tmp_path, "optimizer.lr=0.5")
        assert set(read_search(found).space) == {"strategy", "strategy.zero_stage"}
        assert found.data["optimizer"] == {"lr": 0.5}

    def test_conditions_on_it_are_decided(self, tmp_path: Path) -> None:
        held = read_search(self.read(tmp_path, "strategy=deepspeed"))
        assert held.space["strategy.zero_stage"].when == {}
        assert set(read_search(self.read(tmp_path, "strategy=ddp")).space) == {"optimizer.lr"}

    def test_other_conditions_stay(self, tmp_path: Path) -> None:
        both = "{strategy: deepspeed, seed: 0}}\n    seed: {choice: [0, 1]}"
        file = tmp_path / "x.yaml"
        file.write_text(BASE + SPACE.replace("{strategy: deepspeed}}", both), "utf-8")
        space = read_search(read_document(file, ["strategy=deepspeed"])).space
        assert space["strategy.zero_stage"].when == {"seed": 0}
        assert set(read_search(read_document(file, ["seed=1"])).space) == {
            "optimizer.lr",
            "strategy",
        }

    def test_the_space_itself_is_set(self, tmp_path: Path) -> None:
        given = ("search.space.seed={choice: [0, 1]}", "search.space.optimizer.lr=null")
        found = read_search(self.read(tmp_path, *given, "search.trials=9"))
        assert (set(found.space), found.trials) == ({"strategy", "strategy.zero_stage", "seed"}, 9)

    def test_a_mistake_there_is_of_the_command_line(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError) as caught:
            read_search(self.read(tmp_path, "search.space.optimizer.lr={uniform: [3, 2]}"))
        assert [mistake.file for mistake in caught.value.mistakes] == ["command line"]

    def test_a_scale(self, tmp_path: Path) -> None:
        found = read_search(self.read(tmp_path, scale="small"))
        assert (found.trials, found.space["optimizer.lr"].arguments) == (2, [0.3])
        with pytest.raises(SpecError) as caught:
            read_search(self.read(tmp_path, "search.goal=time_to_accuracy", scale="small"))
        assert [mistake.key for mistake in caught.value.mistakes] == ["search.goal"]


PBT = """\
name: a
model: resnet20
data: digits
training: {epochs: 9, global_batch: 8}
search:
  trials: 4
  space:
    optimizer.lr: {loguniform: [0.01, 1.0]}
    seed: {randint: [0, 1000]}
  scheduler: {name: pbt, interval_epochs: 2}
"""


def told(text: str) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        read_search(parse_document(text, "x.yaml"))
    assert all(mistake.line for mistake in caught.value.mistakes)
    return {mistake.key: mistake.message for mistake in caught.value.mistakes}


def test_a_population() -> None:
    scheduler = read_search(parse_document(PBT, "x.yaml")).scheduler
    assert scheduler.model_dump() == {
        "name": "pbt",
        "interval_epochs": 2,
        "quantile": 0.25,
        "resample": 0.25,
        "factors": (0.8, 1.2),
    }


@pytest.mark.parametrize(
    "key",
    ["optimizer.lr", "schedule", "schedule.warmup_epochs", "training.clip_norm"],
)
def test_what_may_change_in_mid_training(key: str) -> None:
    assert can_change(key)
    read_search(parse_document(PBT.replace("optimizer.lr: {log", f"{key}: {{log"), "x.yaml"))


@pytest.mark.parametrize(
    "key",
    [
        *("model", "model.options.width", "data.augment", "strategy", "loader", "optimizer"),
        *("optimizer.name", "training.global_batch", "training.epochs", "training.ema_decay"),
        *("training.precision", "resources.workers", "optimizer.decay_bias_and_norm"),
    ],
)
def test_what_may_not(key: str) -> None:
    assert not can_change(key)


def test_each_key_that_may_not_change_is_told_with_those_that_may() -> None:
    text = PBT.replace(
        "    seed",
        "    resources.workers: {choice: [1, 2]}\n    strategy: {choice: [ddp]}\n    seed",
    )
    found = told(text)
    assert list(found) == ["search.space.resources.workers", "search.space.strategy"]
    for message in found.values():
        assert "pbt moves weights" in message
        assert all(key in message for key in CHANGED)


@pytest.mark.parametrize(
    ("before", "after", "key", "words"),
    [
        (
            "interval_epochs: 2",
            "interval_epochs: 9",
            "search.scheduler",
            "training.epochs, which is 9",
        ),
        ("interval_epochs: 2", "interval_epochs: 0", "search.scheduler.interval_epochs", "1"),
        ("epochs: 2}", "epochs: 2, quantile: 0.6}", "search.scheduler.quantile", "0.5"),
        ("epochs: 2}", "epochs: 2, factors: []}", "search.scheduler.factors", "at least 1"),
        ("epochs: 2}", "epochs: 2, factors: [0, 2]}", "search.scheduler.factors.0", "than 0"),
        ("  trials: 4\n", "  trials: 1\n", "search.trials", "2 trials or more"),
        ("  trials: 4\n", "  trials: 4\n  goal: throughput\n", "search.goal", "got through"),
        ("  trials: 4\n", "  trials: 4\n  searcher: optuna\n", "search.searcher", "not optuna"),
        ("global_batch: 8", "batch_per_worker: auto", "training.batch_per_worker", "the same st"),
        ("batch: 8", "batch: 8, accumulate: auto", "training.accumulate", "the same steps"),
        ("batch: 8", "batch: 8, accumulate: {auto: fastest}", "training.accumulate", "same steps"),
        ("    optimizer.lr: {loguniform: [0.01, 1.0]}\n", "", "search.space", "may change"),
    ],
)
def test_what_a_population_cannot_have(before: str, after: str, key: str, words: str) -> None:
    assert before in PBT
    found = told(PBT.replace(before, after))
    assert list(found) == [key]
    assert words in found[key]


def test_a_grid_of_one_draw_is_a_population() -> None:
    text = PBT.replace("trials: 4", "trials: 1").replace("randint: [0, 1000]", "grid: [0, 1]")
    assert read_search(parse_document(text, "x.yaml")).trials == 1


def test_the_example_of_the_guide_is_in_order() -> None:
    page = Path(__file__).parents[3].joinpath("docs", "how-to", "sweeps.md").read_text("utf-8")
    section = page.partition("## Population-based training")[2]
    example = section.partition("```yaml\n")[2].partition("```")[0]
    text = f"name: a\nmodel: resnet20\ndata: digits\n{example}"
    search = read_search(parse_document(text, "x.yaml"))
    assert search.scheduler.name == "pbt"
    told = section.partition("## ")[0]
    assert all(f"`{key.partition('.')[2]}`" in told or f"`{key}`" in told for key in CHANGED)
