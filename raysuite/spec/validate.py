"""Plain data -> ExperimentSpec; pydantic's findings become Mistakes that name file and line."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from raysuite.errors import Mistake, SpecError
from raysuite.spec.document import Document, KeyPath
from raysuite.spec.experiment import ExperimentSpec

Place = Callable[[KeyPath], tuple[str, int | None]]


def validate(data: Mapping[str, Any], place: Place) -> ExperimentSpec:
    """The spec that `data` describes. Raises SpecError with every mistake in it."""
    try:
        return ExperimentSpec.model_validate(dict(data))
    except ValidationError as error:
        raise SpecError([_mistake(finding, place) for finding in error.errors()]) from error


def load_spec(document: Document) -> ExperimentSpec:
    """The spec of a document, its matrix not expanded."""
    return validate(document.data, document.place)


def valid_keys(path: Iterable[str]) -> list[str]:
    """The keys that a block may have, over all options that it can be: `()` is the whole spec."""
    models: list[type[BaseModel]] = [ExperimentSpec]
    for key in path:
        models = [
            model
            for parent in models
            if key in parent.model_fields
            for model in _models(parent.model_fields[key].annotation)
        ]
    return sorted({name for model in models for name in model.model_fields})


def _models(annotation: Any) -> list[type[BaseModel]]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _models(get_args(annotation)[0])
    if origin is not None and (origin is Union or str(origin) == "<class 'types.UnionType'>"):
        return [model for part in get_args(annotation) for model in _models(part)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return []


def _walk(location: tuple[str | int, ...]) -> tuple[list[type[BaseModel]], KeyPath]:
    """The models that hold the last key of pydantic's location, and the key path without tags."""
    models: list[type[BaseModel]] = [ExperimentSpec]
    path: list[str | int] = []
    for index, part in enumerate(location):
        tagged = [m for m in models if _tag(m) == part]
        if tagged and index > 0 and len(models) > 1:
            models = tagged
            continue
        path.append(part)
        if index == len(location) - 1:
            break
        models = [
            below
            for model in models
            if isinstance(part, str) and part in model.model_fields
            for below in _models(model.model_fields[part].annotation)
        ]
    return models, tuple(path)


def _tag(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("name")
    return field.default if field is not None else None


def _mistake(finding: Any, place: Place) -> Mistake:
    models, path = _walk(finding["loc"])
    kind, given, context = finding["type"], finding.get("input"), finding.get("ctx", {})
    key = ".".join(map(str, path))
    if kind == "extra_forbidden":
        names = sorted({name for model in models for name in model.model_fields})
        message = f"unknown key; {suggest(str(path[-1]), names)}"
    elif kind == "union_tag_invalid":
        tags = [tag.strip().strip("'") for tag in context["expected_tags"].split(",")]
        message = f"no {key} is called {context['tag']!r}; {suggest(context['tag'], tags)}"
    elif kind == "literal_error":
        names = [name.strip().strip("'") for name in context["expected"].replace(" or ", ",").split(",")]
        message = f"given was {given!r}; {suggest(str(given), names)}"
    elif kind == "missing":
        message = "is missing; it has no default"
    elif kind == "union_tag_not_found":
        message = "needs a `name`"
    elif kind == "value_error":
        message = str(context.get("error", finding["msg"]))
    else:
        wish = finding["msg"][0].lower() + finding["msg"][1:]
        message = f"given was {given!r}; {wish.replace('input should', 'it should')}"
    file, line = place(path)
    return Mistake(message, key=key, file=file, line=line)


def suggest(given: str, valid: Iterable[str]) -> str:
    """`did you mean x? valid are x, y, z`, for a name that is not among the valid ones."""
    names = list(valid)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}valid are {', '.join(names)}"
