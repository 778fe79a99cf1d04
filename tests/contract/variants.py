"""Variants of the strategies, and what the contract tests expect of each: declared only here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysuite.spec.strategies import STRATEGY_OPTIONS

EXACT, LOSSY, FP32 = "exact", "lossy", "fp32"
"""FP32: exact, of a framework that is not torch and has no 16 bits here."""


@dataclass(frozen=True)
class Variant:
    """A strategy with some of its options; the defaults are those of most strategies."""

    options: dict[str, Any]
    kind: str = EXACT
    ci: tuple[int, ...] = (2,)
    """Ranks of test_strategies.py in CI: none if CI has the options in other tests or variants."""
    regroups: bool = False
    """Whether a resumed run groups gradients anew, on which Gloo's sums of three ranks depend. DDP
    orders its buckets after the first step; Horovod fuses the gradients that are ready."""
    rounding: float = 0.0
    """Relative difference of a resumed run on two ranks in test_stopping.py."""
    saved: int = 3
    """Kinds of files in a checkpoint."""
    traffic: tuple[int, ...] = ()
    """Micro-batches per step for which test_traffic.py counts the bytes."""
    refused: Mapping[str, str] | None = None
    """Network of tests/networks.py -> key to change. None: neither in test_networks.py nor in
    test_tasks.py."""
    recipes: tuple[str, ...] = ()
    """What of test_recipes.py the strategy could break."""

    @property
    def name(self) -> str:
        return str(self.options["name"])

    @property
    def plain(self) -> bool:
        """Whether tests of whole runs have it: no option is set, except what ZeRO shards."""
        return self.options.keys() <= {"name", "zero_stage"}

    def fits(self, size: int) -> bool:
        """Whether it can have this number of ranks."""
        alone = not STRATEGY_OPTIONS[self.name].distributed
        return size == 1 if alone else size % self.options.get("copies", 1) == 0


def zero(stage: int, **options: Any) -> dict[str, Any]:
    return {"name": "deepspeed", "zero_stage": stage, **options}


WHOLE = ("lamb", "muon", "schedule_free")
EVERY = (*WHOLE, "sgd", "lars", "adamw", "tuned", "weighted")
LAYERS = {"name": "fsdp", "units": "layers"}
KEPT = {**LAYERS, "reshard_after_forward": False}
SEARCHED = dict.fromkeys(("unused", "every_second_step"), "strategy.find_unused_parameters")
ZEROED = {"every_second_step": "strategy.name", "unused": "model.freeze"}
ZERO = {**ZEROED, "scalar": "strategy.name"}
ZERO_3 = {**ZERO, **dict.fromkeys(("empty", "scripted"), "strategy.zero_stage")}
OF_FSDP = dict.fromkeys(
    ("every_second_step", "scalar", "empty", "scripted", "hooked"), "strategy.name"
)

VARIANTS = {
    "ddp": Variant(
        {"name": "ddp"}, ci=(2, 3), regroups=True, traffic=(1, 2), refused=SEARCHED, recipes=EVERY
    ),
    "ddp-buckets": Variant(
        {"name": "ddp", "bucket_mb": 0.0005, "static_graph": True}, regroups=True
    ),
    "ddp-unused": Variant(
        {"name": "ddp", "find_unused_parameters": True}, regroups=True, refused={}
    ),
    "ddp-fp16": Variant({"name": "ddp", "compression": "fp16"}, LOSSY, traffic=(1,)),
    "ddp-bf16": Variant(
        {"name": "ddp", "compression": "bf16", "bucket_mb": 0.1}, LOSSY, traffic=(2,)
    ),
    "ddp-powersgd": Variant({"name": "ddp", "compression": "powersgd"}, LOSSY),
    "horovod": Variant(
        {"name": "horovod"},
        regroups=True,
        rounding=1e-6,
        traffic=(2,),
        refused=ZEROED,
        recipes=(*WHOLE, "tuned"),
    ),
    "horovod-unfused": Variant({"name": "horovod", "fusion_threshold_mb": 0}, regroups=True),
    "horovod-fp16": Variant(
        {"name": "horovod", "compression": "fp16", "cycle_time_ms": 2}, LOSSY, traffic=(1,)
    ),
    "deepspeed-0": Variant(zero(0), rounding=1e-6, traffic=(2,), refused=ZERO, recipes=WHOLE),
    "deepspeed-1": Variant(
        zero(1), ci=(), rounding=1e-6, saved=4, traffic=(2,), recipes=("adamw", "tuned")
    ),
    "deepspeed-2": Variant(zero(2), ci=(2, 3), rounding=1e-6, saved=4, traffic=(2,), refused=ZERO),
    "deepspeed-3": Variant(
        zero(3), rounding=1e-6, traffic=(1, 2), refused=ZERO_3, recipes=("adamw", "weighted")
    ),
    "deepspeed-2-overlap": Variant(zero(2, overlap_comm=True, bucket_mb=0.0005), traffic=(1,)),
    "deepspeed-2-offload": Variant(zero(2, offload="optimizer"), ci=(), recipes=("adamw",)),
    "deepspeed-3-offload": Variant(zero(3, offload="parameters")),
    "fsdp": Variant({"name": "fsdp"}, ci=(2, 3), refused=OF_FSDP, recipes=WHOLE[1:]),
    "fsdp-layers": Variant(KEPT, ci=(), traffic=(2,)),
    "fsdp-offload": Variant({**KEPT, "offload": "parameters"}),
    "fsdp-hybrid": Variant({"name": "fsdp", "copies": 2}),
    "fsdp-reduce": Variant({**LAYERS, "reduce_dtype": "bf16"}, LOSSY, traffic=(1,)),
    "fsdp-gather": Variant({**LAYERS, "gather_dtype": "bf16"}, LOSSY, traffic=(2,)),
    "fabric": Variant({"name": "fabric"}, regroups=True),
    "accelerate": Variant({"name": "accelerate"}, regroups=True),
    **{name: Variant({"name": name}, FP32, saved=2) for name in ("tensorflow", "keras", "jax")},
    "single": Variant({"name": "single"}, ci=(1,), refused={}),
}
PIPELINES: dict[str, dict[str, Any]] = {
    schedule: {"name": "pipeline", "schedule": schedule, "micro_batches": 2}
    for schedule in ("model_parallel", "gpipe", "1f1b")
}
"""For tests of whole runs; test_pipelines.py has all schedules and options."""
