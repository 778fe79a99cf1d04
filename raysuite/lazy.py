"""Import on first use: an attribute by its import path, and the modules of a package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection
from typing import Any

from raysuite.errors import MissingPartError, UserError
from raysuite.parts import owner


def load(target: str) -> Any:
    """Import the attribute that `target` names, written `module:attribute`.

    Raises MissingPartError if an optional package of raysuite is missing, and UserError if the
    module or the attribute does not exist.
    """
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute:
        raise UserError(f"{target!r} is not an import path; write it as 'module:attribute'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if missing := owner(error.name or ""):
            raise MissingPartError(
                f"{missing.name} is not installed, and {target} needs it; "
                f"run `{missing.install}`, or `raysuite doctor` to see what is missing"
            ) from error
        raise UserError(
            f"{target!r} cannot be imported: no module named {error.name!r}; "
            "check the spelling, and that the folder with this module is the working folder or in "
            "PYTHONPATH"
        ) from error
    except SystemExit as error:
        raise UserError(
            f"{target!r} cannot be imported: {module_name} ends the process (sys.exit) while it is "
            "imported; move the code that must not run on import below "
            "`if __name__ == '__main__':`"
        ) from error
    except Exception as error:  # the import of the user's module may raise any exception
        raise UserError(
            f"{target!r} cannot be imported: {module_name} raised {type(error).__name__}: {error}"
        ) from error
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise UserError(f"{target!r} cannot be imported: {module_name!r} has no {attribute!r}")
        value = getattr(value, part)
    return value


def names_of(
    package: str, names: Collection[str], modules: Collection[str]
) -> Callable[[str], Any]:
    """Make a `__getattr__` for a package (PEP 562). The function imports all `modules` of the
    package when one of `names` is first used."""

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        own = vars(sys.modules[package])
        for module in modules:
            within = vars(importlib.import_module(f"{package}.{module}"))
            own.update({known: within[known] for known in names if known in within})
        return own[name]

    return find
