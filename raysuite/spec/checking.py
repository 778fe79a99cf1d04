"""Plain data -> ExperimentSpec; pydantic's findings become Mistakes that name file and line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from raysuite.errors import Mistake, SpecError
from raysuite.spec.base import CHOSEN, IMPORT_PATH
from raysuite.spec.document import Document, KeyPath
from raysuite.spec.experiment import ExperimentSpec

Place = Callable[[KeyPath], tuple[str, int | None]]
Model = TypeVar("Model", bound=BaseModel)


def validate(data: Mapping[str, Any], place: Place) -> ExperimentSpec:
    """The spec that `data` describes. Raises SpecError with every mistake in it."""
    return validate_as(ExperimentSpec, data, place)


def validate_as(model: type[Model], data: Mapping[str, Any], place: Place) -> Model:
    """What `data` describes, as `model`. Raises SpecError with every mistake in it."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        mistakes = [_mistake(finding, place, model) for finding in error.errors()]
        raise SpecError(mistakes) from error


def load_spec(document: Document) -> ExperimentSpec:
    """The spec of a document, its matrix not expanded."""
    return validate(document.data, document.place)


def valid_keys(path: Iterable[str], root: type[BaseModel] = ExperimentSpec) -> list[str]:
    """The keys that a block may have, over all options that it can be: `()` is the whole spec."""
    models: list[type[BaseModel]] = [root]
    for key in path:
        models = _below(models, key)
    return sorted({name for model in models for name in model.model_fields})


def dotted_keys(root: type[BaseModel] = ExperimentSpec) -> list[str]:
    """Every key of every block, written as in a matrix: `training.epochs`."""
    blocks = valid_keys((), root)
    return blocks + [f"{block}.{key}" for block in blocks for key in valid_keys((block,), root)]


def suggest(given: str, valid: Iterable[str], near: Iterable[str] = ()) -> str:
    """`did you mean x? valid are x, y, z`, for a name that is not among the valid ones.

    `near` are further names that may have been meant, and that are not listed.
    """
    names = list(valid)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.6)
    close += [name for name in near if name.rpartition(".")[2] == given]
    close += difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid are {', '.join(names)}"


def blocks_of(annotation: Any) -> list[type[BaseModel]]:
    """The blocks of options that a field's type allows."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return blocks_of(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [model for part in get_args(annotation) for model in blocks_of(part)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return []


def _below(models: Iterable[type[BaseModel]], key: str) -> list[type[BaseModel]]:
    return [
        block
        for model in models
        if key in model.model_fields
        for block in blocks_of(model.model_fields[key].annotation)
    ]


def _walk(
    location: tuple[str | int, ...], root: type[BaseModel]
) -> tuple[list[type[BaseModel]], KeyPath]:
    """The models with the last key of pydantic's location, and the path of keys without tags."""
    location = tuple(part for part in location if not str(part).startswith(CHOSEN))
    models: list[type[BaseModel]] = [root]
    path: list[str | int] = []
    for index, part in enumerate(location):
        tagged = [model for model in models if _tag(model) == part]
        if tagged and index > 0 and len(models) > 1:
            models = tagged
            continue
        path.append(part)
        if index == len(location) - 1:
            break
        models = _below(models, str(part))
    return models, tuple(path)


def _tag(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("name")
    return field.default if field is not None else None


def _mistake(finding: Any, place: Place, root: type[BaseModel]) -> Mistake:
    models, path = _walk(finding["loc"], root)
    key = ".".join(map(str, path))
    file, line = place(path)
    near = dotted_keys(root)
    return Mistake(_message(finding, models, key, path, near), key=key, file=file, line=line)


def _message(
    finding: Any, models: list[type[BaseModel]], key: str, path: KeyPath, near: list[str]
) -> str:
    kind, context = finding["type"], finding.get("ctx", {})
    given = _short(finding.get("input"))
    if kind == "extra_forbidden":
        names = sorted({name for model in models for name in model.model_fields})
        return f"unknown key; {suggest(str(path[-1]), names, near)}"
    if kind == "union_tag_invalid":
        tag = context["tag"]
        return f"no {key} is called {tag!r}; {suggest(tag, _names(context['expected_tags']))}"
    if kind == "literal_error":
        valid = _names(context["expected"].replace(" or ", ","))
        return f"given was {given}; {suggest(str(finding['input']), valid)}"
    if kind == "missing":
        return "is missing; it has no default"
    if kind in ("union_tag_not_found", "model_type", "model_attributes_type"):
        names = [str(_tag(block)) for block in _below(models, key) if isinstance(_tag(block), str)]
        block = f"a block with a `name`: {', '.join(names)}" if names else "a block of keys"
        return f"given was {given}; it should be {block}"
    if kind == "value_error":
        return str(context.get("error", finding["msg"]))
    if kind == "string_pattern_mismatch":
        import_path = context["pattern"] == IMPORT_PATH
        rule = "write it as 'module:attribute'" if import_path else _NAME_RULE
        return f"given was {given}; {rule}"
    wish = finding["msg"][0].lower() + finding["msg"][1:]
    return f"given was {given}; {wish.replace('input should', 'it should')}"


_NAME_RULE = (
    "it should be letters, digits, dots, dashes and underscores, and begin with a letter or digit"
)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _names(listed: str) -> list[str]:
    return [name.strip().strip("'") for name in listed.split(",")]
