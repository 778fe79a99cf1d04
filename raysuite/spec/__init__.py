"""Read specs: YAML -> ExperimentSpec. All mistakes are reported at once."""

from typing import TYPE_CHECKING

from raysuite.lazy import names_of

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
# imported on use, so that a cluster's agents, which read only site files, start quickly
__getattr__ = names_of(__name__, __all__, _MODULES)
