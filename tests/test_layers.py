"""Imports go strictly down, and heavy libraries are loaded where they are used.

    5  cli
    4  orchestrate
    3  gate train
    2  plan
    1  models tasks data optim parallel measure perf cluster images track report
    0  spec records errors files parts units lazy nested cgroups compiled ending mark

Packages of one layer never import each other, but for those of layer 0, and for gate and train: a
run visits the gate, which makes its networks as training does.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from raysuite.spec.strategies import STRATEGY_OPTIONS

ROOT = Path(__file__).parents[1] / "raysuite"
PACKAGES = {
    5: "cli",
    4: "orchestrate",
    3: "gate train",
    2: "plan",
    1: "models tasks data optim parallel measure perf cluster images track report",
    0: "spec records errors files parts units lazy nested cgroups compiled ending mark __init__",
}
LAYERS = {package: layer for layer, packages in PACKAGES.items() for package in packages.split()}
ENTRY = "__main__"
HEAVY = {"torch", "torchvision", "ray", "mlflow", "horovod", "deepspeed", "nvidia", "timm"}
LIGHT_PACKAGES = {*PACKAGES[0].split(), "plan", "perf", "cluster", "cli"}
"""What `raysuite --help` and `raysuite plan` load: on a login node, in well under a second."""
LAYER_0_NEEDS = {"pydantic", "yaml"}

HAS_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
"""What an import can stand below."""
FILES = sorted(path for path in ROOT.rglob("*.py") if path.stem != ENTRY)


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def top(name: str) -> str:
    return name.partition(".")[0]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def imports(path: Path, module_level: bool) -> list[tuple[str, int]]:
    """Dotted names that a file imports, with lines, but for what only a type checker sees."""
    return list(imported(path, module_level))


def imported(path: Path, module_level: bool) -> Iterator[tuple[str, int]]:
    pending: list[ast.AST] = [tree(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        if module_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            # `from raysuite import lazy` names a module in its second half
            ours = top(node.module or "") == "raysuite"
            tails = [f".{alias.name}" for alias in node.names] if ours else [""]
            yield from ((f"{node.module}{tail}", node.lineno) for tail in tails)
        pending += (each for each in ast.iter_child_nodes(node) if isinstance(each, HAS_STATEMENTS))


def too_high(path: Path, name: str) -> bool:
    """Whether a file may not import that name."""
    package, other = package_of(path), top(name.removeprefix("raysuite."))
    if top(name) != "raysuite" or other not in LAYERS or other == package:
        return False
    return LAYERS[other] > LAYERS[package] or (
        LAYERS[other] == LAYERS[package] and LAYERS[other] not in (0, 3)
    )


def test_every_package_has_a_layer() -> None:
    assert {*map(package_of, FILES)} - {*LAYERS} == set()


def test_imports_go_down() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        for name, line in imports(path, module_level=False)
        if too_high(path, name)
    ] == []


def test_light_packages_load_nothing_heavy() -> None:
    assert [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        for name, line in imports(path, module_level=True)
        if package_of(path) in LIGHT_PACKAGES and top(name) in HEAVY
    ] == []


def test_layer_0_needs_little() -> None:
    allowed = LAYER_0_NEEDS | {"raysuite"} | sys.stdlib_module_names
    assert [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in FILES
        for name, line in imports(path, module_level=True)
        if LAYERS[package_of(path)] == 0 and top(name) not in allowed
    ] == []


def is_private_to_ray(name: str) -> bool:
    """Whether a dotted name is of Ray and has a part that is not public."""
    first, *rest = name.split(".")
    return first == "ray" and any(part.startswith("_") for part in rest)


def test_private_parts_of_ray_are_in_one_file_and_mocks_in_none() -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in sorted(ROOT.rglob("*.py"))
        for name, _ in imports(path, module_level=False)
        if top(name) == "unittest" or is_private_to_ray(name)
    }
    assert {path for path, _ in found} == {"cluster/ray_shortcuts.py"}
    assert is_private_to_ray("ray._raylet")
    assert is_private_to_ray("ray.train.v2._internal.callbacks")
    assert not is_private_to_ray("ray.train.v2.api.config")


def test_no_module_imports_itself_through_others() -> None:
    paths = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in FILES}
    modules = {path: name.removesuffix(".__init__") for path, name in paths.items()}
    known = set(modules.values())
    graph = {
        module: {
            name if name in known else name.rpartition(".")[0]
            for name, _ in imports(path, module_level=False)
            if top(name) == "raysuite"
        }
        for path, module in modules.items()
    }
    list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the modules


def test_the_walk_sees_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "import torch.nn\nfrom raysuite import lazy\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import ray\nelse:\n    import mlflow\n"
        "try:\n    import deepspeed\nexcept ImportError:\n    pass\n"
        "class A:\n    import yaml\n    def f(self):\n        import horovod\n"
    )
    low = {name for name, _ in imports(file, module_level=True)}
    assert low == {"torch.nn", "raysuite.lazy", "typing", "mlflow", "deepspeed", "yaml"}
    assert {name for name, _ in imports(file, module_level=False)} == low | {"horovod"}


def test_no_code_compares_with_a_strategys_name() -> None:
    """An image's `extras` have names of strategies too, which is why images are left out."""
    found = [
        f"{path.relative_to(ROOT)}:{each.lineno}"
        for path in FILES
        if package_of(path) not in ("spec", "parallel", "images")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Compare | ast.match_case)
        for each in ast.walk(node if isinstance(node, ast.Compare) else node.pattern)
        if isinstance(each, ast.Constant) and each.value in set(STRATEGY_OPTIONS)
    ]
    assert found == []
