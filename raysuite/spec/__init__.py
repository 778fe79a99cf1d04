"""What a person asks for: YAML -> ExperimentSpec, with every mistake at once."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysuite.spec.base import suggest
    from raysuite.spec.checking import load_spec, validate
    from raysuite.spec.document import Document, parse_document, read_document
    from raysuite.spec.experiment import ExperimentSpec
    from raysuite.spec.json_schema import spec_schema

__all__ = [
    "Document",
    "ExperimentSpec",
    "load_spec",
    "parse_document",
    "read_document",
    "spec_schema",
    "suggest",
    "validate",
]
_MODULES = ("checking", "document", "experiment", "json_schema")


def __getattr__(name: str) -> Any:
    """Load the experiments' language on first use: a cluster's agents read sites alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in _MODULES:
        own = vars(import_module(f"{__name__}.{module}"))
        globals().update({known: own[known] for known in __all__ if known in own})
    return globals()[name]
