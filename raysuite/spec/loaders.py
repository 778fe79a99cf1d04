"""The options of loaders.

One class per loader holds its options and declares its capabilities, so that no other code tests
for a loader's name. To add a loader, write its class here and list it in `LoaderOptions`, and write
its file in `raysuite/data/loaders/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from raysuite.spec.base import Options, expand_shorthand

if TYPE_CHECKING:
    from raysuite.spec.data_set import DataOptions
    from raysuite.spec.datasets import DatasetFacts

Decode = Literal["exact", "scaled"]


class _LoaderOptions(Options):
    """Capabilities of a loader; the defaults suit most loaders."""

    implementation: ClassVar[str] = ""
    """`module:attribute` of its implementation of `raysuite.data.base.Loader`."""
    part: ClassVar[str] = ""
    """The optional part (`raysuite.parts`) that it requires."""
    widths: ClassVar[tuple[str, ...]] = ()
    """Names of the options that set how many threads, processes or tasks load at the same time."""
    loads: ClassVar[bool] = True
    """Whether the loader reads the data set."""
    transforms: ClassVar[bool] = True
    """Whether the loader can apply the user's own transform to each image."""
    tensors: ClassVar[str] = ""
    """`module:attribute` of its implementation for samples other than images; these samples are
    passed to the network unchanged. Empty if it loads only images."""
    needs_ray: ClassVar[bool] = False
    """Whether the loader needs Ray, because it loads in Ray tasks."""
    holds_decoded: ClassVar[bool] = False
    """Whether the whole decoded data set has to fit into memory."""

    @property
    def on_gpu(self) -> bool:
        """Whether these options need a worker with a GPU."""
        return False

    def chosen(self, data: DataOptions, facts: DatasetFacts) -> LoaderOptions:
        """These options; for `auto`, the options of the loader that suits this data set."""
        chosen: LoaderOptions = self  # type: ignore[assignment]
        return chosen


class NativeOptions(_LoaderOptions):
    """Decodes on the CPU: in the training loop, in threads, or in PyTorch's DataLoader."""

    implementation = "raysuite.data.loaders.native:NativeLoader"
    widths = ("threads", "processes")
    tensors = "raysuite.data.loaders.tensor_loader:TensorLoader"

    name: Literal["native"] = "native"
    threads: int = Field(default=0, ge=0)
    """Threads per worker that load batches ahead; the decoder releases the GIL."""
    processes: int = Field(default=0, ge=0)
    """Loading processes per worker, instead of threads. If both are 0, the worker itself loads."""
    prefetch: int = Field(default=2, ge=1)
    """Number of batches that each loading process, or all threads together, keep ready; threads
    keep further batches ready if some threads would otherwise be idle."""
    decode: Decode = "exact"
    """`exact`: the same pixels as every other loader; `scaled`: a JPEG that is resized to half its
    size or less is decoded at 1/2 to 1/8 of its size, so that its pixels differ from those
    of other loaders."""
    transport: Literal["auto", "uint8", "float32"] = "auto"
    """Type of the images that are loaded ahead: `uint8` pixels, which the device normalises, or
    normalised `float32` values; `auto`: float32 for threads without a GPU, else uint8."""

    @model_validator(mode="after")
    def _one_kind(self) -> NativeOptions:
        if self.threads and self.processes:
            raise ValueError(
                f"threads is {self.threads} and processes is {self.processes}; set only one "
                "of them, and leave the other out"
            )
        return self


class DaliOptions(_LoaderOptions):
    """NVIDIA DALI's pipeline, on the CPU or on the GPU. Intended for large images on a GPU."""

    implementation = "raysuite.data.loaders.dali:DaliLoader"
    part = "dali"
    widths = ("threads",)
    transforms = False

    name: Literal["dali"] = "dali"
    device: Literal["cpu", "gpu"] = "cpu"
    """The device that decodes and normalises images."""
    threads: int = Field(default=1, ge=1)
    """Number of CPU threads in each worker's pipeline."""
    prefetch: int = Field(default=2, ge=1)
    """Batches that the pipeline keeps ready."""

    @property
    def on_gpu(self) -> bool:
        return self.device == "gpu"


class MemoryOptions(_LoaderOptions):
    """Decodes the whole data set once, into memory that all workers of a node share."""

    implementation = "raysuite.data.loaders.memory:MemoryLoader"
    tensors = "raysuite.data.loaders.tensor_loader:HeldLoader"
    widths = ("threads",)
    holds_decoded = True

    name: Literal["memory"] = "memory"
    threads: int = Field(default=1, ge=0)
    """Threads per worker that crop and resize; 0: the worker itself crops and resizes, when it
    needs a batch. At the start, all cores decode the data set."""
    prefetch: int = Field(default=2, ge=1)
    """Number of batches that each worker keeps ready, and at least one per thread; not used with 0
    threads."""


SMALL = 2**28
"""Largest size of a decoded data set that counts as small, in bytes; every node is assumed to have
this much memory."""
_OF_ONE_SIZE = ("idx", "binary", "pickle")
"""Formats of images that have equal sizes and need no decoder."""


class AutoOptions(_LoaderOptions):
    """Chooses `memory` if the decoded data set is known to be small (MNIST, CIFAR-10, digits), else
    `native`, both with `threads: 0`; the plan states the chosen loader. Both loaders deliver equal
    batches."""

    implementation = NativeOptions.implementation
    tensors = NativeOptions.tensors

    name: Literal["auto"] = "auto"

    def chosen(self, data: DataOptions, facts: DatasetFacts) -> LoaderOptions:
        images = facts.train_samples + facts.val_samples
        known = data.name == "digits" or data.form in _OF_ONE_SIZE
        small = known and images * facts.image_values <= SMALL
        return MemoryOptions(threads=0) if small else NativeOptions()


class SyntheticOptions(_LoaderOptions):
    """Passes the same batch to each step, without loading, to measure the throughput of training
    alone, which no loader can exceed. The batch has random tensors or, for your own data set
    whose samples are not images, its first samples. Metrics and losses are meaningless."""

    implementation = "raysuite.data.loaders.synthetic:SyntheticLoader"
    tensors = implementation
    loads = False
    transforms = False

    name: Literal["synthetic"] = "synthetic"


class RayDataOptions(_LoaderOptions):
    """Ray Data: samples are read and decoded in Ray tasks on the worker's node, and streamed to the
    worker."""

    implementation = "raysuite.data.loaders.ray_data:RayDataLoader"
    tensors = implementation
    widths = ("tasks",)
    needs_ray = True

    name: Literal["ray_data"] = "ray_data"
    tasks: int = Field(default=1, ge=1)
    """Ray tasks per worker that decode at the same time, each on one core."""
    images_per_task: int = Field(default=128, ge=1)
    """Largest number of images or other samples that a task loads. A task loads whole batches, and
    at least one batch of any size. Each task has an overhead of about 10 ms in Ray."""
    prefetch: int = Field(default=2, ge=1)
    """Batches that each worker keeps ready."""


LoaderOptions = Annotated[
    AutoOptions | NativeOptions | DaliOptions | MemoryOptions | RayDataOptions | SyntheticOptions,
    Field(discriminator="name"),
    BeforeValidator(expand_shorthand),
]

LOADER_OPTIONS: dict[str, type[_LoaderOptions]] = {
    options.model_fields["name"].default: options
    for options in get_args(get_args(LoaderOptions)[0])
}
"""Loader name -> its options."""
