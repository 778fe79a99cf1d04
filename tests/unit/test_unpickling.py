"""Where raysuite unpickles, which can run code of whoever wrote the bytes: nowhere but here."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import raysuite

ROOT = Path(raysuite.__file__).parent
MODULES = {
    *("pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"),
    *("multiprocessing", "torch.multiprocessing", "torch.distributed.checkpoint", "torch.package"),
}
NAMES = {
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list", "broadcast_object", "allgather_object"),
    *("broadcast_optimizer_state", "allow_pickle", "read_pickle", "Unpickler", "cloudpickle"),
    *("load_model", "restore", "load_checkpoint"),
}
ALLOWED = {
    ("data/formats/cifar.py", "pickle"): "builds numbers, text and arrays only",
    ("data/formats/cifar.py", "Unpickler"): "the same",
    ("data/synthesis/making.py", "pickle"): "writes",
    ("data/loaders/ray_data.py", "pickle"): "from the worker to its own tasks, by Ray",
    ("data/loaders/native.py", "multiprocessing"): "pipes of this process's children",
    ("orchestrate/loader_timings.py", "multiprocessing"): "pipes of this process's children",
    ("data/processes.py", "multiprocessing"): "pipes of this process's children",
    ("models/model_costs.py", "torch.multiprocessing"): "a class of weak references",
    ("parallel/deepspeed.py", "pickle"): "its error",
    ("parallel/deepspeed.py", "load_checkpoint"): "within weights_only()",
    ("track/model_registry.py", "load_model"): "the model that this process has just written",
}


WORDS = {each.rpartition(".")[2] for each in MODULES | NAMES}
"""A file without any of them has no such use."""


def trees(words: Iterable[str]) -> dict[Path, ast.Module]:
    """The files that have one of those words."""
    texts = {file: file.read_text("utf-8") for file in ROOT.rglob("*.py")}
    return {
        file: ast.parse(text) for file, text in texts.items() if any(each in text for each in words)
    }


def uses(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = [each.name for each in names]
            case ast.ImportFrom(module=str(module), names=names):
                found = [module, *(f"{module}.{each.name}" for each in names)]
                yield from {each.name for each in names} & NAMES
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield from {name} & NAMES
                continue
            case _:
                continue
        for module in MODULES:
            if any(f"{each}.".startswith(f"{module}.") for each in found):
                yield module


def test_every_use_that_can_unpickle_is_known() -> None:
    found = {
        (str(file.relative_to(ROOT)), use)
        for file, tree in trees(WORDS).items()
        for use in uses(tree)
    }
    assert found == set(ALLOWED)


def test_torch_loads_weights_only() -> None:
    nodes = [node for tree in trees(["torch.load"]).values() for node in ast.walk(tree)]
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    methods = [each for each in calls if isinstance(each.func, ast.Attribute)]
    found = [each for each in methods if ast.unparse(each.func) == "torch.load"]
    assert found
    for call in found:
        assert "weights_only=True" in map(ast.unparse, call.keywords), ast.unparse(call)
