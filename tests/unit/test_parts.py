"""The table of parts agrees with pyproject.toml, strategies and loaders name what is in it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from raysuite.parts import EXTRAS, PARTS, installed, owner, part
from raysuite.spec.loaders import LOADER_OPTIONS
from raysuite.spec.optimizers import ScheduleFreeOptions
from raysuite.spec.strategies import STRATEGY_OPTIONS

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_extras_are_pyprojects() -> None:
    extras = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    assert {each.name for each in EXTRAS} == extras.keys() - {"dev", "docs"}


def test_strategies_loaders_and_optimisers_name_parts() -> None:
    every = [*STRATEGY_OPTIONS.values(), *LOADER_OPTIONS.values(), ScheduleFreeOptions]
    assert {options.part for options in every} - {each.name for each in PARTS} == {""}


def test_every_strategy_and_loader_names_its_implementation() -> None:
    engines = {name: each.engine for name, each in STRATEGY_OPTIONS.items() if name != "custom"}
    loaders = {name: each.implementation for name, each in LOADER_OPTIONS.items()}
    assert all(":" in target for target in (engines | loaders).values())


def test_an_absent_part_is_not_installed() -> None:
    assert installed("")
    assert installed("ray")
    assert owner("nvidia.dali.fn") is part("dali")
    assert owner("nowhere") is None
    assert owner("torch.nn") is None, "it is in every installation"
    assert part("wandb").install == "make setup EXTRAS=wandb"
    assert part("timm").install == "make setup"
