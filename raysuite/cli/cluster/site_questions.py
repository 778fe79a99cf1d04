"""What `raysuite cluster site new` asks of somebody who sits before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
import yaml

from raysuite.cli.console import print_text
from raysuite.cluster.slurm import SlurmError, accounts, node_groups
from raysuite.errors import SpecError
from raysuite.spec.checking import validate_as
from raysuite.spec.document import UNREADABLE, Loader
from raysuite.spec.site import SITES

QUESTIONS = {
    "slurm": {
        "partition": "partition",
        "account": "account that pays",
        "time": "time limit (HH:MM:SS or D-HH:MM:SS)",
        "nodes": "nodes, unless --nodes says otherwise",
        "cpus_per_node": "CPUs of a node",
        "gpus_per_node": "GPUs of a node",
        "memory_per_node": "memory of a node (480G; 0 for all)",
        "interface": "network interface between nodes (ib0, ...)",
        "modules": "modules to load, with commas",
        "scratch": "folder on each node's own disk",
        "image": "Apptainer image (a path)",
    },
    "local": {"scratch": "folder for temporary files", "image": "Apptainer image (a path)"},
}
"""Key -> what is asked; an empty answer leaves the key out."""


def ask_all(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The answers, each valid by itself; what is given already is offered as the default."""
    hints = _hints() if kind == "slurm" else {}
    print_text("An empty answer, or -, leaves a key out.", error=True)
    answers: dict[str, Any] = {}
    for key, question in QUESTIONS.get(kind, {}).items():
        if hints.get(key):
            print_text(f"  {key}: {hints[key]}", error=True)
        default = given.get(key, "")
        shown = ", ".join(default) if isinstance(default, list | tuple) else str(default)
        while True:
            text = typer.prompt(question, default=shown, show_default=bool(shown), err=True)
            value = _value(key, text.strip())
            mistake = _mistake(kind, key, value)
            if mistake is None:
                answers[key] = value
                break
            print_text(f"  {mistake}", error=True)
    return answers


def _value(key: str, text: str) -> Any:
    if text in ("", "-"):
        return None
    if key == "modules":
        return [name.strip() for name in text.split(",") if name.strip()]
    if key in ("nodes", "cpus_per_node", "gpus_per_node"):
        try:
            return yaml.load(text, Loader)
        except UNREADABLE:
            return text
    return text


def _mistake(kind: str, key: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        validate_as(SITES[kind], {key: value}, lambda path: ("", None))
    except SpecError as error:
        return error.mistakes[0].message
    return None


def _hints() -> dict[str, str]:
    """What SLURM offers, where there is one here."""
    hints = {}
    try:
        rows = {
            f"{group.partition}{' (default)' if group.default else ''}: "
            f"{group.cpus} CPUs, {group.gpus} GPUs, {group.memory_mb} MB a node": None
            for group in node_groups()
        }
        hints["partition"] = "; ".join(rows)
    except SlurmError as error:
        hints["partition"] = f"sinfo cannot say which there are: {error}"
    try:
        mine, _ = accounts()
        hints["account"] = ", ".join(sorted(mine))
    except SlurmError:
        pass  # many sites keep no books, or keep them elsewhere
    return hints
