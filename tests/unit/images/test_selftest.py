"""What an image must contain, checked with a stand-in for Horovod."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from raysuite.images import selftest
from raysuite.images.recipe import Variant
from raysuite.images.selftest import _horovod, failures

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


def test_each_part_that_cannot_be_imported_is_reported_and_the_others_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(selftest, "ALWAYS", ("no_such_part", "json", "no_other_part"))
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(__version__="7"))
    wrong = failures({"variant": "cpu", "extras": ["timm", "deepspeed"]})
    assert [each.partition(":")[0] for each in wrong] == ["no_such_part", "no_other_part", "timm"]
    assert capsys.readouterr().out.splitlines() == ["json 2.0.9", "deepspeed 7"]
