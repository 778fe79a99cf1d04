"""Models: the CIFAR ResNets of the paper, torchvision's classifiers, and your own."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

import raysuite.models
from raysuite.errors import UserError
from raysuite.models import build
from raysuite.models.cifar_resnet import BasicBlock, CifarResNet
from raysuite.models.gpt import Block, Gpt
from raysuite.spec.datasets import DIGITS, DatasetFacts
from raysuite.spec.experiment import ModelOptions
from raysuite.spec.stems import ADAPTING, CIFAR_RESNETS, TORCHVISION_CLASSIFIERS, misfit, stem_of

HERE = "tests.unit.models.test_models"


def facts(channels: int = 3, size: int = 32, classes: int = 10) -> DatasetFacts:
    return DatasetFacts(100, 10, classes, channels, size)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("resnet20", "0.27"),
        ("resnet32", "0.46"),
        ("resnet44", "0.66"),
        ("resnet56", "0.85"),
        ("resnet110", "1.7"),
    ],
)
def test_parameters_as_in_table_6_of_the_paper(name: str, millions: str) -> None:
    count = parameters(build(ModelOptions(name=name), facts()))
    digits = len(millions.partition(".")[2])
    assert f"{count / 1e6:.{digits}f}" == millions


def test_layers_as_in_the_paper() -> None:
    model = CifarResNet(56)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 56  # option A has no convolution in a shortcut


@pytest.mark.parametrize("name", CIFAR_RESNETS)
def test_every_named_resnet_reads_the_digits(name: str) -> None:
    model = build(ModelOptions(name=name), DIGITS).eval()
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("size", [1, 7, 8, 32, 33])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_any_side(size: int, channels: int) -> None:
    model = build(ModelOptions(name="resnet20"), facts(channels, size, classes=3)).eval()
    assert model(torch.zeros(2, channels, size, size)).shape == (2, 3)


def test_a_depth_that_is_none() -> None:
    with pytest.raises(ValueError, match="6n\\+2"):
        CifarResNet(21)
    with pytest.raises(ValueError, match="6n\\+2"):
        CifarResNet(2)


def test_the_shortcut_is_the_subsampled_identity_and_zeros() -> None:
    block = BasicBlock(16, 32, stride=2)
    x = torch.rand(2, 16, 7, 7)
    nn.init.zeros_(block.bn2.weight)  # silences the convolutions
    y = block.eval()(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2])
    assert not y[:, 16:].any()


def test_weights_are_drawn_as_he_et_al_say() -> None:
    torch.manual_seed(0)
    weight = CifarResNet(20).stage3[2].conv1.weight  # type: ignore[union-attr]
    assert isinstance(weight, Tensor)
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert weight.mean().item() == pytest.approx(0, abs=1e-3)


def test_the_seed_decides_the_weights() -> None:
    def draw(seed: int) -> Tensor:
        torch.manual_seed(seed)
        weight = build(ModelOptions(name="resnet20"), facts()).get_parameter("fc.weight")
        return weight.detach()

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_our_list_of_torchvision_is_torchvisions() -> None:
    theirs = torchvision.models.list_models(module=torchvision.models)
    assert sorted(TORCHVISION_CLASSIFIERS) == sorted(theirs)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 32),
        ("squeezenet1_1", 32),
        ("googlenet", 64),
        ("inception_v3", 96),
        ("vit_b_32", 64),
        ("maxvit_t", 224),
    ],
)
def test_torchvisions_models_return_logits_in_training_too(name: str, size: int) -> None:
    with torch.device("meta"):
        model = build(ModelOptions(name=name), facts(size=size, classes=7))
        logits = model.train()(torch.zeros(2, 3, size, size))
    assert isinstance(logits, Tensor)
    assert logits.shape == (2, 7)


def test_torchvisions_other_models_take_rgb() -> None:
    with pytest.raises(UserError, match=r"set data\.channels to 3"):
        build(ModelOptions(name="densenet121"), DIGITS)


def test_models_of_tokens_and_of_images_are_not_exchanged() -> None:
    for name, channels, key in (
        ("gpt", 0, None),
        ("gpt", None, None),
        ("gpt", 3, "model.name"),
        ("resnet18", 0, "model.name"),
        ("resnet20", 0, "model.name"),
        ("densenet121", 1, "data.channels"),
    ):
        found = misfit(name, {}, channels, 32)
        assert (found and found[0]) == key, name
    assert misfit("resnet20", {"stem": "small"}, 3, 32) is not None
    assert misfit("resnet18", {"stem": "large"}, 3, 31) is None
    assert misfit("vgg11", {"stem": "small"}, 3, 31) is None


def test_the_stem_is_that_of_the_size_unless_it_is_given() -> None:
    stems = [stem_of("vgg11", size) for size in (28, 64, 65)]
    assert stems == ["small", "small", "large"]
    assert (stem_of("vgg11", 28, "large"), stem_of("vgg11", 224, "small")) == ("large", "small")
    assert stem_of("densenet121", 28) is stem_of("resnet20", 28) is None


@pytest.mark.parametrize("name", CIFAR_RESNETS + ADAPTING)
def test_these_take_any_image(name: str) -> None:
    assert misfit(name, {}, 1, 1) is None
    assert misfit(name, {}, 3, 999) is None


def test_what_is_not_known_is_not_judged() -> None:
    assert misfit("densenet121", {}, None, None) is None
    assert misfit("vgg11", {"stem": "large"}, None, None) is None
    assert misfit("my.own:Net", {"stem": "any"}, 1, 1) is None
    assert misfit("timm:vgg11", {}, 1, 1) is None


def _takes(name: str, size: int) -> bool:
    with torch.device("meta"):
        try:
            model = build(ModelOptions(name=name), facts(size=size))
            model(torch.zeros(2, 3, size, size))
        except (RuntimeError, UserError, AssertionError, ValueError):
            return False
    return True


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("alexnet", 63),
        ("convnext_tiny", 32),
        ("densenet121", 29),
        ("googlenet", 15),
        ("inception_v3", 75),
        ("maxvit_t", 224),
        ("squeezenet1_0", 21),
        ("squeezenet1_1", 17),
        ("swin_t", 4),
        ("vit_b_16", 16),
        ("vit_b_32", 32),
        ("vit_h_14", 14),
        ("vit_l_16", 16),
        ("vit_l_32", 32),
    ],
)
def test_what_is_said_of_sizes_is_so(
    name: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = least - 4 if name == "maxvit_t" else least - 1  # it pads up to three missing pixels
    for size, fits in ((below, False), (least, True)):
        said = misfit(name, {}, 3, size)
        assert (said is None) == fits
        assert said is None or (said[0] == "data.image_size" and f"{least}" in said[1])
    monkeypatch.setattr(raysuite.models, "misfit", lambda *_: None)
    assert _takes(name, least)
    assert not _takes(name, below)


@pytest.mark.parametrize(("size", "near"), [(1, 16), (23, 16), (25, 32), (223, 224)])
def test_the_nearest_multiple_is_recommended(size: int, near: int) -> None:
    said = misfit("vit_b_16", {}, 3, size)
    assert said is not None
    assert said[1].endswith(f"give {near}")


@pytest.mark.parametrize("name", [*ADAPTING, "densenet121"])
def test_stems_that_are_none(name: str) -> None:
    said = misfit(name, {"stem": "smal"}, 3, 32)
    assert said is not None
    assert said[0] == "model.options.stem"


def test_vggs_large_head_needs_pixels() -> None:
    options = {"stem": "large"}
    assert misfit("vgg11", options, 3, 32) is None
    with pytest.raises(UserError, match=r"model\.options\.stem: 5 poolings reduce 31"):
        build(ModelOptions(name="vgg11", options=options), facts(size=31))


class Own(nn.Linear):
    def __init__(self, num_classes: int, *, image_size: int, width: int = 1, **more: Any) -> None:
        super().__init__(image_size * width, num_classes)
        self.more = more


def takes_nothing() -> nn.Module:
    return nn.Identity()


def takes_anything(**given: Any) -> nn.Module:
    assert not given
    return nn.Identity()


def gives_none(num_classes: int) -> None:
    return None


def breaks(num_classes: int) -> nn.Module:
    raise RuntimeError("no luck")


number = 3


def own(name: str, **options: Any) -> nn.Module:
    return build(ModelOptions(name=f"{HERE}:{name}", options=options), facts(size=8, classes=5))


def test_your_own_is_called_with_what_it_names() -> None:
    model = own("Own")
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features, model.more) == (8, 5, {})
    assert isinstance(own("takes_nothing"), nn.Identity)
    assert isinstance(own("takes_anything"), nn.Identity)


def of_tokens(num_classes: int, sequence: int, in_channels: int = 7) -> nn.Module:
    return nn.Linear(sequence, num_classes * in_channels)


class Lazy(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.LazyLinear(6), nn.BatchNorm1d(6), nn.Dropout(0.5))


def test_your_own_of_tokens_is_called_with_their_number() -> None:
    tokens = DatasetFacts(1, 1, classes=5, channels=0, image_size=0, sequence=16)
    model = build(ModelOptions(name=f"{HERE}:of_tokens"), tokens)
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == (16, 35)


def test_lazy_layers_are_made_without_training_the_others() -> None:
    torch.manual_seed(1)
    model = own("Lazy")
    after = torch.rand(())
    assert [tuple(each.shape) for each in model.parameters()] == [(6, 192), (6,), (6,), (6,)]
    assert all(each.training for each in model.modules())
    assert not model[2].running_mean.any()
    torch.manual_seed(1)
    nn.Linear(192, 6)
    assert torch.equal(torch.rand(()), after)


def test_your_options_come_first() -> None:
    model = own("Own", width=2, num_classes=4)
    assert isinstance(model, nn.Linear)
    assert (model.in_features, model.out_features) == (16, 4)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("breaks", {}, r"RuntimeError: no luck"),
        ("takes_nothing", {"depth": 3}, r"raised TypeError"),
        ("gives_none", {}, r"type NoneType, not a torch"),
        ("number", {}, r"a callable"),
        ("Nothing", {}, r"has no 'Nothing'"),
    ],
)
def test_your_own_that_cannot_be_made(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        own(name, **options)


def test_your_own_that_cannot_be_imported() -> None:
    with pytest.raises(UserError, match="no module named 'no_such_module'"):
        build(ModelOptions(name="no_such_module:Net"), facts())


def test_bad_options_of_a_named_model() -> None:
    with pytest.raises(UserError, match=r"it raised TypeError: .*width.*; change model.options"):
        build(ModelOptions(name="resnet20", options={"width": 3}), facts())


def test_gpt_names_the_nearest_width_that_its_heads_divide() -> None:
    for width, heads, near in ((15, 4, 16), (17, 4, 16), (3, 8, 8)):
        with pytest.raises(UserError, match=rf" {near} would be valid"):
            Gpt(10, sequence=4, heads=heads, width=width)


@pytest.mark.parametrize(("tied", "parameters"), [(True, 124_439_808), (False, 163_037_184)])
def test_gpt2_has_its_published_number_of_parameters(tied: bool, parameters: int) -> None:
    with torch.device("meta"):
        network = Gpt(50_257, 1024, layers=12, heads=12, width=768, tied=tied)
    assert sum(each.numel() for each in network.parameters()) == parameters


def test_gpt_begins_with_the_deviations_of_gpt2() -> None:
    """0.02, and in the last matrices of attention and MLP that divided by sqrt(2 * 8)."""
    for name, each in Gpt(500, 64, layers=8).named_parameters():
        if each.dim() == 2:
            small = name.endswith(("joined.weight", "narrow.weight"))
            assert each.std().item() == pytest.approx(0.005 if small else 0.02, rel=0.1), name
        else:
            assert torch.equal(each, torch.full_like(each, float(name.endswith("weight")))), name


def test_gpt_drops_nothing_in_evaluation() -> None:
    facts = DatasetFacts(1, 1, 10, channels=0, image_size=0, sequence=16)
    dropping = build(ModelOptions(name="gpt", options={"dropout": 0.5}), facts)
    plain = build(ModelOptions(name="gpt"), facts)
    plain.load_state_dict(dropping.state_dict())
    tokens = torch.arange(32).view(2, 16) % 10
    assert torch.equal(dropping.eval()(tokens), plain.eval()(tokens))
    first, second = dropping.train()(tokens), dropping(tokens)
    assert not torch.equal(first, second)


def test_a_block_of_gpt_is_torchs_with_a_causal_mask() -> None:
    """And GPT-2's GELU. A token is predicted from those before it alone."""
    block = Block(width=12, heads=3, dropout=0.0)
    gelu = partial(functional.gelu, approximate="tanh")
    theirs = nn.TransformerEncoderLayer(
        12, 3, 48, dropout=0.0, activation=gelu, batch_first=True, norm_first=True
    )
    names = {"self_attn.in_proj_": "queries_keys_values.", "self_attn.out_proj.": "joined."}
    names |= {"linear1.": "wide.", "linear2.": "narrow.", "norm1.": "norm1.", "norm2.": "norm2."}
    ours = block.state_dict()
    for their, our in names.items():
        for kind in ("weight", "bias"):
            nn.init.normal_(ours[our + kind])
            theirs.get_parameter(their + kind).data.copy_(ours[our + kind])
    x = torch.randn(2, 7, 12)
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    torch.testing.assert_close(block(x), theirs(x, src_mask=mask), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("stem", "side"), [("small", 8), ("large", 2)])
def test_a_mobilenet_halves_images_twice_more_with_the_large_stem(
    channels: int, stem: str, side: int
) -> None:
    options = ModelOptions(name="mobilenet_v2", options={"stem": stem})
    with torch.device("meta"):
        model = build(options, facts(channels, 64))
        assert model.features(torch.zeros(2, channels, 64, 64)).shape == (2, 1280, side, side)
