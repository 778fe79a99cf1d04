"""Tasks: the loss and the metrics of a training, and the unit of its throughput."""

from __future__ import annotations

from raysuite.errors import UserError
from raysuite.lazy import load
from raysuite.spec.datasets import DatasetFacts
from raysuite.spec.tasks import CLASSIFICATION, TaskFacts, TaskOptions
from raysuite.tasks.base import Metric, Task

__all__ = ["Metric", "Task", "facts_of", "make_task"]


def _class_of(options: TaskOptions) -> type[Task]:
    found = load(options.implementation)
    if not isinstance(found, type) or not issubclass(found, Task):
        raise UserError(
            f"task {options.name!r} is {found!r}; it should be a class derived from "
            "raysuite.tasks.Task"
        )
    return found


def facts_of(options: TaskOptions) -> TaskFacts:
    """The declarations of a spec's task, as data. Raises UserError if the task cannot be imported,
    is not a Task class, or declares no valid metrics."""
    if options.classifies:
        return CLASSIFICATION
    return _class_of(options).facts().model_copy(update={"name": options.name})


def make_task(options: TaskOptions, facts: DatasetFacts) -> Task:
    """Make the task for a data set. Raises UserError if the task cannot be imported, or if its
    constructor fails with `task.options`."""
    kind = _class_of(options)
    try:
        return kind(facts, **options.options)
    except UserError:
        raise
    except Exception as error:  # the constructor may be the user's own
        called = ", ".join(f"{key}={value!r}" for key, value in options.options.items())
        raise UserError(
            f"task {options.name!r} cannot be made: called with {called or 'no options'}, it "
            f"raised {type(error).__name__}: {error}; change task.options"
        ) from error
