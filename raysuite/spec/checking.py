"""Plain data -> ExperimentSpec; pydantic's errors become Mistakes that name file and line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from raysuite.errors import Mistake, SpecError
from raysuite.spec.base import CHOSEN, IMPORT_PATH, suggest, types_of
from raysuite.spec.document import Document, KeyPath
from raysuite.spec.experiment import FREE_FORM, NOT_IN_A_MATRIX, ExperimentSpec

Place = Callable[[KeyPath], tuple[str, int | None]]
Model = TypeVar("Model", bound=BaseModel)


def validate(data: Mapping[str, Any], place: Place) -> ExperimentSpec:
    """`data` as an ExperimentSpec. Raises SpecError with all mistakes in `data`."""
    return validate_as(ExperimentSpec, data, place)


def validate_as(model: type[Model], data: Mapping[str, Any], place: Place) -> Model:
    """`data` as an instance of `model`. Raises SpecError with all mistakes in `data`."""
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        mistakes = [_mistake(finding, place, model) for finding in error.errors()]
        raise SpecError(mistakes) from error


def load_spec(document: Document) -> ExperimentSpec:
    """The spec of a document; its matrix is not expanded."""
    return validate(document.data, document.place)


def dotted_keys(root: type[BaseModel] = ExperimentSpec) -> list[str]:
    """All dotted keys of a spec, such as `training.epochs`. For a block with several classes of
    options, such as `strategy`, the keys of all classes are listed."""
    blocks = sorted(root.model_fields)
    keys = list(blocks)
    for block in blocks:
        below = {key for model in _below([root], block) for key in model.model_fields}
        keys += [f"{block}.{key}" for key in sorted(below)]
    return keys


def not_swept(key: str) -> str:
    """Why runs of an experiment cannot differ in a dotted key; empty if they can."""
    block, _, name = key.partition(".")
    known = [each for each in dotted_keys() if each.partition(".")[0] not in NOT_IN_A_MATRIX]
    if key in known or key.startswith(FREE_FORM):
        return ""
    if block in NOT_IN_A_MATRIX:
        return "belongs to the whole experiment, and cannot differ between its runs"
    beside = [each for each in known if name and each.startswith(f"{block}.")]
    beside = beside or [each for each in known if "." not in each]
    return f"unknown key; {suggest(key, beside, known)}"


def blocks_of(annotation: Any) -> list[type[BaseModel]]:
    """The blocks of options that a field's type allows."""
    types = types_of(annotation)
    return [each for each in types if isinstance(each, type) and issubclass(each, BaseModel)]


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
    """Return the classes that may have the last key of `location`, and `location` without
    pydantic's tags."""
    location = tuple(part for part in location if not str(part).startswith(CHOSEN))
    models: list[type[BaseModel]] = [root]
    path: list[str | int] = []
    for index, part in enumerate(location):
        tagged = [model for model in models if _tag(model) == part]
        if tagged and len(models) > 1:
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
    file, line = place(path)
    message = _message(finding, models, path, root)
    return Mistake(message, key=".".join(map(str, path)), file=file, line=line)


def _others_with(root: type[BaseModel], path: KeyPath, models: list[type[BaseModel]]) -> list[str]:
    """Names of the blocks that are valid in place of `models` and that, unlike `models`, have the
    last key of `path`."""
    options = [root]
    for part in path[:-1]:
        options = _below(options, str(part))
    having = (each for each in options if each not in models and path[-1] in each.model_fields)
    return [tag for each in having if isinstance(tag := _tag(each), str)]


def _message(
    finding: Any, models: list[type[BaseModel]], path: KeyPath, root: type[BaseModel]
) -> str:
    kind, context = finding["type"], finding.get("ctx", {})
    given, key = _short(finding.get("input")), ".".join(map(str, path))
    if kind == "extra_forbidden":
        names = sorted({name for model in models for name in model.model_fields})
        block = ".".join(map(str, path[:-1]))
        near = [each for each in dotted_keys(root) if each != key]  # keys of other blocks
        others = _others_with(root, path, models)
        known = f"a key of {', '.join(others)}, but not of {_tag(models[0])}" if others else ""
        return f"{known or 'unknown key'}; {suggest(str(path[-1]), names, near, block)}"
    if kind == "union_tag_invalid":
        tag = context["tag"]
        return f"no {key} is called {tag!r}; {suggest(tag, _names(context['expected_tags']))}"
    if kind == "literal_error":
        valid = _names(context["expected"].replace(" or ", ","))
        return f"got {given}; {suggest(str(finding['input']), valid)}"
    if kind == "missing":
        return "is missing; it has no default"
    if kind in ("union_tag_not_found", "model_type", "model_attributes_type"):
        names = [str(_tag(block)) for block in _below(models, key) if isinstance(_tag(block), str)]
        block = f"a block with a `name`: {', '.join(names)}" if names else "a block of keys"
        return f"got {given}; it should be {block}"
    if kind == "value_error":
        return str(context.get("error", finding["msg"]))
    if kind == "string_pattern_mismatch":
        import_path = context["pattern"] == IMPORT_PATH
        rule = "write it as 'module:attribute'" if import_path else _NAME_RULE
        return f"got {given}; {rule}"
    wish = finding["msg"][0].lower() + finding["msg"][1:]
    return f"got {given}; {wish.replace('input should', 'it should')}"


_NAME_RULE = (
    "it should consist of letters, digits, dots, dashes and underscores, and begin with a letter "
    "or digit"
)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _names(listed: str) -> list[str]:
    return [name.strip().strip("'") for name in listed.split(",")]
