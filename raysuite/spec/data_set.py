"""The section `data` of a spec: the data set, its format, and the processing of its images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from raysuite.spec.base import IMPORT_PATH, Options, later, suggest
from raysuite.spec.datasets import (
    DATASETS,
    NAMED,
    RECORD_PATTERNS,
    TOKENS,
    Augment,
    Format,
    default_path,
)


class FeatureMap(Options):
    """Names of the features in the Examples of TFRecords, the first label, and glob patterns of the
    files."""

    image: str = "image/encoded"
    """The feature with the encoded JPEG or PNG."""
    label: str = "image/class/label"
    """The feature with the class, an integer."""
    first_label: int | None = None
    """Label of the first class; default: 1 for ImageNet, as in TensorFlow's files, else 0."""
    train: str = RECORD_PATTERNS["train"]
    """The training files, as a glob pattern below `data.path`."""
    val: str = RECORD_PATTERNS["val"]
    """The validation files, as a glob pattern below `data.path`."""


_WITHOUT_FILES = {"digits": "kept in raysuite's cache", "python_topics": "a part of Python"}
_OF_IMAGES = ("image_size", "channels", "augment", "mean", "std", "transform")


class DataOptions(Options):
    """The data set, its format on disk, and the processing of its images."""

    name: str
    """`digits` (scikit-learn's 1,797 handwritten digits), `mnist`, `cifar10`, `imagenet`,
    `highres`, `image_folder` or `tfrecord` (your own images), `text` or `tokens` (your own files
    for language models), `python_topics` (the texts of Python's `help()`), or your own
    `module:attribute`."""
    format: Format | None = None
    """`folder` of image files, `tfrecord` shards with an index, `idx` (MNIST's), `binary` or
    `pickle` (CIFAR-10's), `text` or `tokens`; default: the data set's usual format."""
    path: str | None = None
    """The data set's path. Default for named data sets: the folder NAME-FORMAT, to which `raysuite
    data make` writes, in $RAYSUITE_DATA or, if this variable is not set, in the folder `datasets`
    of raysuite's cache. `path` is required for `image_folder` (train/CLASS/*.png and
    val/CLASS/*.png, or .jpg), `tfrecord`, `text` (train.txt and val.txt, or train/*.txt and
    val/*.txt) and `tokens` (train.bin and val.bin, or train/*.bin and val/*.bin, and Megatron-LM's
    .idx)."""
    root: str | None = None
    """Instead of `path`: the folder whose subfolder NAME-FORMAT contains the named data set."""
    image_size: int | None = Field(default=None, ge=1)
    """Side in pixels of the network's square input images; default: the data set's usual size."""
    channels: Literal[1, 3] | None = None
    """1: grey; 3: RGB; default: as in the named data set, or 3 for your own images."""
    classes: int | None = Field(default=None, ge=1)
    """Number of classes, or vocabulary size; required for `tokens` and `tfrecord`."""
    sequence: int | None = later(None, ge=1)
    """For data sets of tokens: number of tokens in each sequence."""
    features: FeatureMap = FeatureMap()
    """For `tfrecord`: names of the features, the first label, and glob patterns of the files."""
    augment: Literal[Augment, "auto"] = "auto"
    """Random augmentation of each training image in each epoch: `none`, `pad_crop_flip` (a shift by
    up to an eighth of the side, and a flip: CIFAR's recipe), `resized_crop_flip` (a random crop,
    resized, and a flip: ImageNet's recipe); `auto`: the recipe of a named data set, and `none` for
    all others. In your own data set for a task other than classification, only images [C, H, W]
    with integer masks [H, W] are augmented, each together with its mask."""
    mean: tuple[float, ...] | None = later(None, min_length=1, max_length=3)
    """Mean of each channel, for pixels in 0..1. It is subtracted from each image. Default: the mean
    of the data set, or ImageNet's for your own images."""
    std: tuple[Annotated[float, Field(gt=0)], ...] | None = later(None, min_length=1, max_length=3)
    """Standard deviation of each channel, by which each image is divided after `mean` is
    subtracted; required with `mean`."""
    transform: str | None = later(None, pattern=IMPORT_PATH)
    """Your own `module:function`, called for each image after `augment` and before `mean` and
    `std`. Arguments: the image, uint8 [size, size, C], and a numpy.random.Generator, in place of
    which validation passes None. The function returns an image of the same shape."""
    bad_samples: Literal["error", "skip"] = "error"
    """Handling of unreadable images. `error`: the run ends at the first unreadable image. `skip`:
    all images are checked before the first epoch, and unreadable images are left out."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed unchanged to your own `module:attribute`."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name in DATASETS or re.fullmatch(IMPORT_PATH, name):
            return name
        raise ValueError(
            f"no data set is called {name!r}; {suggest(name, DATASETS)}, or 'module:attribute' of "
            "your own"
        )

    @model_validator(mode="after")
    def _belongs_together(self) -> DataOptions:
        wrong = [
            f"{self.name} needs `{key}`" for key in self._needed() if getattr(self, key) is None
        ]
        formats = self.formats
        if self.format is not None and self.format not in formats:
            valid = " or ".join(formats) or "none, because your own data set needs no format"
            wrong.append(f"{self.name} cannot be read as {self.format!r}; valid: {valid}")
        if self.path is not None and (self.name in _WITHOUT_FILES or self.own):
            wrong.append(
                f"`path` is for data sets on disk; {self.name} is {_WITHOUT_FILES[self.name]}; "
                "leave it out"
                if self.name in _WITHOUT_FILES
                else "`path` is for raysuite's own formats; give the path of your data in `options`"
            )
        if self.root is not None and (self.name not in NAMED or self.path is not None):
            wrong.append(
                f"`root` is only for {', '.join(NAMED)}, and only without `path`; leave it out"
            )
        if self.options and not self.own:
            wrong.append("`options` is only for your own 'module:attribute'; leave it out")
        if self.classes is not None and self.name not in ("tfrecord", "tokens") and not self.own:
            wrong.append(
                f"`classes` is not for {self.name}, whose number of classes is known; leave it out"
            )
        if self.of_tokens:
            wrong += [
                f"`{key}` is for images, but {self.name} has sequences of tokens; leave it out"
                for key in self.of_images
            ]
        elif self.sequence is not None:
            wrong.append(f"`sequence` is only for {', '.join(TOKENS)}; leave it out")
        lengths = [len(values) for values in (self.mean, self.std) if values is not None]
        if len(lengths) == 1 or len(set(lengths)) > 1:
            wrong.append("give `mean` and `std` together, with one value for each channel")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def _needed(self) -> tuple[str, ...]:
        return {
            "image_folder": ("path", "image_size"),
            "tfrecord": ("path", "image_size", "classes"),
            "text": ("path", "sequence"),
            "tokens": ("path", "sequence", "classes"),
            "python_topics": ("sequence",),
        }.get(self.name, ())

    @property
    def own(self) -> bool:
        """Whether the data set is the user's own `module:attribute`."""
        return ":" in self.name

    @property
    def of_images(self) -> list[str]:
        """The keys that are set but apply to images only."""
        fields = type(self).model_fields
        return [key for key in _OF_IMAGES if getattr(self, key) != fields[key].default]

    @property
    def of_tokens(self) -> bool:
        """Whether the samples are sequences of tokens."""
        return self.name in TOKENS

    @property
    def without_files(self) -> str:
        """Where the samples come from, if the user need not provide files; else empty."""
        return _WITHOUT_FILES.get(self.name, "")

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats that this data set may have on disk; the first is the default."""
        if self.name in NAMED:
            return NAMED[self.name].formats
        if self.name == "digits":
            return ("folder", "tfrecord")
        known = {"image_folder": "folder", "tfrecord": "tfrecord", **TOKENS}
        return (known[self.name],) if self.name in known else ()  # type: ignore[return-value]

    @property
    def form(self) -> Format | None:
        """The format on disk; None for the user's own `module:attribute`."""
        return self.format or next(iter(self.formats), None)


def root_of(data: DataOptions) -> Path:
    """The folder in which the data set is expected."""
    assert data.form is not None
    return Path(data.path or default_path(data.name, data.form, data.root)).expanduser()
