"""What options stand for: their exact form, several reductions in a step, networks refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from raysuite.spec.strategies import Network, StrategyOptions

options = TypeAdapter[Any](StrategyOptions).validate_python
EXACT_FSDP = {"gather_dtype": "fp32", "reduce_dtype": "fp32"}


@pytest.mark.parametrize(
    ("lossy", "exact"),
    [
        ({"name": "ddp", "compression": "powersgd", "bucket_mb": 3}, {"compression": "none"}),
        ({"name": "horovod", "compression": "fp16", "cycle_time_ms": 2}, {"compression": "none"}),
        ({"name": "fsdp", "gather_dtype": "bf16", "copies": 2}, EXACT_FSDP),
        ({"name": "fsdp", "reduce_dtype": "bf16", "units": "layers"}, EXACT_FSDP),
    ],
)
def test_the_exact_form_differs_in_what_changes_the_results_alone(
    lossy: dict[str, Any], exact: dict[str, Any]
) -> None:
    given, wanted = options(lossy), options(lossy | exact)
    assert given.lossless() == wanted.lossless() == wanted
    assert given.lossy
    assert wanted.lossy is None


SMALL = {"bucket_mb": 2**-9}  # of 512 fp32 values


@pytest.mark.parametrize(
    ("given", "changed", "pause_s"),
    [
        ({"name": "ddp", "compression": "fp16"}, SMALL, 0),
        ({"name": "ddp", "bucket_mb": 1e-3}, {}, 0),
        ({"name": "horovod", "cycle_time_ms": 2}, {}, 0.006),
        ({"name": "deepspeed", "zero_stage": 3}, SMALL, 0),
        ({"name": "fabric"}, SMALL, 0),
        ({"name": "fsdp", "copies": 2}, {"units": "layers"}, 0),
    ],
)
def test_gradients_of_the_gate_are_reduced_in_several_parts(
    given: dict[str, Any], changed: dict[str, Any], pause_s: float
) -> None:
    found, pause = options(given).several_reductions()
    assert (found, pause) == (options(given | changed), pytest.approx(pause_s))


@pytest.mark.parametrize(
    "given", [{"name": "single"}, {"name": "deepspeed", "zero_stage": 0}, {"name": "pipeline"}]
)
def test_no_options_reduce_gradients_in_several_parts(given: dict[str, Any]) -> None:
    assert options(given).several_reductions() is None


def test_a_pipeline_names_weights_that_it_cannot_send() -> None:
    [(key, message)] = options({"name": "pipeline"}).network_refusals(Network(complex=("a.b",)))
    assert (key, "a.b" in message) == ("strategy.name", True)


def test_zero_3_names_what_it_cannot_shard() -> None:
    assert not [*options({"name": "deepspeed", "zero_stage": 3}).network_refusals(Network())]
    for network, what in ((Network(empty=("a.b",)), "a.b"), (Network(scripted=True), "a Script")):
        [(key, message)] = options({"name": "deepspeed", "zero_stage": 3}).network_refusals(network)
        assert (key, what in message) == ("strategy.zero_stage", True)
        assert not [*options({"name": "deepspeed", "zero_stage": 2}).network_refusals(network)]
