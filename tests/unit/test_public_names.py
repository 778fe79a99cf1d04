"""The public names of the value languages: changing one is a decision, not an accident."""

from __future__ import annotations

import inspect

import raysuite.errors
import raysuite.plan
import raysuite.records
import raysuite.spec


def test_spec() -> None:
    assert sorted(raysuite.spec.__all__) == [
        "Document",
        "ExperimentSpec",
        "load_spec",
        "parse_document",
        "read_document",
        "spec_schema",
        "suggest",
        "validate",
    ]


def test_plan() -> None:
    assert sorted(raysuite.plan.__all__) == [
        "RunPlan",
        "check_unchanged",
        "expand",
        "groups",
        "make_plans",
        "official",
        "passed_over",
        "placed",
    ]


def test_records() -> None:
    facts = {"EpochFinished", "GateVerdict", "Record", "RunFailed", "RunFinished", "RunStarted"}
    store = {"Journal", "Results", "read_journal"}
    assert facts | store <= set(raysuite.records.__all__)


def test_errors() -> None:
    tree = {
        name: value.__mro__[1].__name__
        for name, value in vars(raysuite.errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert tree == {
        "RaysuiteError": "Exception",
        "UserError": "RaysuiteError",
        "SpecError": "UserError",
        "DataError": "UserError",
        "MissingPartError": "UserError",
        "GateError": "RaysuiteError",
        "RunError": "RaysuiteError",
        "HeadLostError": "RaysuiteError",
        "RayStartError": "RaysuiteError",
        "StorageError": "RaysuiteError",
    }


def test_what_is_exported_exists() -> None:
    for module in (raysuite.spec, raysuite.plan, raysuite.records):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []
