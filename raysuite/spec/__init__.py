"""What a person asks for: YAML -> ExperimentSpec, with every mistake at once."""

from raysuite.spec.document import Document, parse_document
from raysuite.spec.experiment import ExperimentSpec
from raysuite.spec.json_schema import spec_schema
from raysuite.spec.reading import read_document
from raysuite.spec.validate import load_spec, suggest, validate

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
