"""What an image must contain, checked with a stand-in for Horovod."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from raysuite.images.recipe import Variant
from raysuite.images.selftest import _horovod

NO_GLOO, NO_NCCL = "horovod is built without gloo", "horovod is built without nccl"


@pytest.mark.parametrize(
    ("variant", "gloo", "nccl", "wrong"),
    [
        (Variant.CPU, True, 0, []),
        (Variant.CPU, False, 0, [NO_GLOO]),
        (Variant.CUDA, True, 22803, []),
        (Variant.CUDA, True, 0, [NO_NCCL]),
        (Variant.CUDA12, True, 22803, []),
        (Variant.CUDA12, True, 0, [NO_NCCL]),
        (Variant.CUDA12, False, 0, [NO_GLOO, NO_NCCL]),
    ],
)
def test_horovod_has_gloo_in_every_variant_and_nccl_in_those_with_cuda(
    monkeypatch: pytest.MonkeyPatch, variant: Variant, gloo: bool, nccl: int, wrong: list[str]
) -> None:
    built = SimpleNamespace(gloo_built=lambda: gloo, nccl_built=lambda: nccl)
    package = ModuleType("horovod")
    package.torch = built  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "horovod", package)
    monkeypatch.setitem(sys.modules, "horovod.torch", built)
    assert _horovod({"variant": variant.value}) == wrong
