"""Tasks as users have them: data, a network and a plain training loop of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import metrics as sklearn
from torch import Tensor, nn
from torch.nn import functional

from raysuite.tasks import Metric, Task
from raysuite.tasks.language_model import LanguageModel
from raysuite.tasks.multi_label import THRESHOLDS

TRAIN, VAL = 45, 13
"""Samples: with batches of 12, the last one of an epoch has 9."""
BATCH, EPOCHS, LR, MOMENTUM = 12, 5, 0.1, 0.9
HERE = "tests.task_sets"


class Samples(torch.utils.data.Dataset[Any]):
    """`make(generator)` for each sample."""

    def __init__(self, split: str, make: Callable[[torch.Generator], Any]) -> None:
        self.samples = [
            make(torch.Generator().manual_seed(1000 * (split == "val") + each))
            for each in range(TRAIN if split == "train" else VAL)
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        return self.samples[number]


def numbers(split: str) -> Samples:
    """[3] -> [2]"""

    def one(draw: torch.Generator) -> Any:
        x = torch.randn(3, generator=draw)
        return x, torch.stack([x.sum(), x[0] - x[1]]) + 0.1 * torch.randn(2, generator=draw)

    return Samples(split, one)


def labelled(split: str) -> Samples:
    """([3], [2]) -> [4] of 0 and 1."""

    def one(draw: torch.Generator) -> Any:
        x, z = torch.randn(3, generator=draw), torch.randn(2, generator=draw)
        return (x, z), torch.stack([x[0] > 0, x[1] > z[0], z[1] > 1, x[2] > x[0]]).float()

    return Samples(split, one)


def masks(split: str) -> Samples:
    """[1, 6, 6] -> [6, 6] of 3 classes, up to half of which do not count."""

    def one(draw: torch.Generator) -> Any:
        image = torch.randn(1, 6, 6, generator=draw)
        mask = image[0].gt(0.5).long() + image[0].gt(-0.5).long()
        rows = int(torch.randint(4, (1,), generator=draw))
        return image, mask.index_fill(0, torch.arange(rows), 255)

    return Samples(split, one)


def patches(split: str) -> Samples:
    """[3, 3, 1] uint8 -> which of its first six pixels is the lightest."""

    def one(draw: torch.Generator) -> Any:
        image = torch.randint(256, (3, 3, 1), generator=draw, dtype=torch.uint8)
        return image.numpy(), int(image.flatten()[:6].argmax())

    return Samples(split, one)


class Sentences(Samples):
    """Sentences of 2 to 7 tokens as dictionaries, padded by the data set itself."""

    def __init__(self, split: str) -> None:
        def one(draw: torch.Generator) -> Any:
            length = int(torch.randint(2, 8, (1,), generator=draw))
            return torch.randint(5, (length,), generator=draw), length

        super().__init__(split, one)

    def collate(self, samples: Any) -> Any:
        rows = nn.utils.rnn.pad_sequence([row for row, _ in samples], batch_first=True)
        lengths = torch.tensor([length for _, length in samples])
        kept = torch.arange(rows.shape[1]) < lengths[:, None]
        return {"tokens": rows, "kept": kept.float()}, torch.where(kept, rows, -1)


class Two(nn.Module):
    """Linear, tanh, linear, of one or two inputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 8), nn.Linear(8, outputs)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.second(self.first(torch.cat(inputs, 1)).tanh())


class Flat(Two):
    """Of an image."""

    def __init__(self) -> None:
        super().__init__(9, 6)

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(inputs[0].flatten(1))


class Maps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.first(images).relu())


class Copier(nn.Module):
    """Logits of each token beside the sum of its sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(5, 6), nn.Linear(12, 5)

    def forward(self, tokens: Tensor, kept: Tensor) -> dict[str, Tensor]:
        each = self.embedding(tokens)
        whole = (each * kept[..., None]).sum(1, keepdim=True).expand_as(each)
        return {"logits": self.out(torch.cat([each, whole], 2))}


class Copy(Task):
    """The user's own: cross-entropy of the tokens that are no padding."""

    unit = "tokens"
    weighted = True
    metrics = (
        Metric(
            "copied",
            "Copied",
            "Share of tokens that are copied",
            value=lambda sums, total: sums[0] / total.weight,
            sums=lambda output, targets: (output["logits"].argmax(2) == targets).sum().reshape(1),
            unit="share",
        ),
    )

    def loss(self, output: dict[str, Tensor], targets: Tensor) -> Tensor:
        return functional.cross_entropy(
            output["logits"].transpose(1, 2), targets, reduction="sum", ignore_index=-1
        )

    def weight(self, targets: Tensor) -> Tensor:
        return (targets >= 0).sum()


class Vowels(LanguageModel):
    """A language model that is trained to predict vowels only."""

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return super().loss(output, targets.where(self._chosen(targets), -100))

    def weight(self, targets: Tensor) -> Tensor:
        return self._chosen(targets).sum()

    def _chosen(self, targets: Tensor) -> Tensor:
        return torch.isin(targets, torch.tensor(list(b"aeiou")))


class Cubes(Task):
    """The user's own: a part of the third power of the error's size."""

    metrics = (
        Metric(
            "worst",
            "Cubes",
            "Mean cube of the error",
            value=lambda sums, total: sums[0] / total.samples,
            sums=lambda output, targets: (output - targets).abs().pow(3).sum().reshape(1),
            higher_is_better=False,
        ),
    )

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return 0.02 * (output - targets).abs().pow(3).sum()


@dataclass(frozen=True)
class Case:
    """A task, its data and network by import path, and the mean loss of a batch as a plain loop
    computes it."""

    task: str
    data: str
    model: dict[str, Any]
    mean_loss: Callable[[Any, Any], Tensor]
    metrics: Callable[[Any, Any], dict[str, float]]
    """(output, targets) of a whole split -> what scikit-learn computes of them."""
    of_images: dict[str, Any] = field(default_factory=dict)


def _log_likelihood(logits: Tensor, targets: Tensor, ignored: int) -> Tensor:
    """Mean over what is not ignored, by the definition; classes are the last dimension."""
    kept = targets != ignored
    chosen = logits[kept] - logits[kept].logsumexp(1, keepdim=True)
    return -chosen[torch.arange(len(chosen)), targets[kept]].mean()


def _binary(logits: Tensor, targets: Tensor) -> Tensor:
    p = logits.sigmoid()
    return -(targets * p.log() + (1 - targets) * (1 - p).log()).mean()


# Metrics, by scikit-learn over a whole split.


def classified(logits: Tensor, targets: Tensor) -> dict[str, float]:
    y, t = logits.numpy(), targets.numpy()
    top5 = sklearn.top_k_accuracy_score(t, y, k=5, labels=range(y.shape[1]))
    return {"accuracy": sklearn.accuracy_score(t, y.argmax(1)), "top5": float(top5)}


def regressed(output: Tensor, targets: Tensor) -> dict[str, float]:
    t, y = targets.double().flatten().numpy(), output.double().flatten().numpy()
    return {
        "mae": sklearn.mean_absolute_error(t, y),
        "rmse": sklearn.root_mean_squared_error(t, y),
        "r2": sklearn.r2_score(t, y),
    }


def several(output: Tensor, targets: Tensor) -> dict[str, float]:
    """Of probabilities rounded down to the thresholds, and of the labels that occur."""
    steps, t = THRESHOLDS - 1, targets.numpy()
    scores = ((output.sigmoid().double() * steps).floor() / steps).numpy()
    known = t.any(0)
    chosen = (output > 0).numpy()
    return {
        "average_precision": sklearn.average_precision_score(t[:, known], scores[:, known]),
        "f1": sklearn.f1_score(t > 0, chosen, average="micro"),
    }


def segmented(output: Tensor, targets: Tensor) -> dict[str, float]:
    kept = targets != 255
    t, y = targets[kept].numpy(), output.argmax(1)[kept].numpy()
    return {
        "mean_iou": float(sklearn.jaccard_score(t, y, average="macro")),
        "pixel_accuracy": sklearn.accuracy_score(t, y),
    }


def followed(output: Tensor, targets: Tensor) -> dict[str, float]:
    kept = targets != -100
    t, y = targets[kept].numpy(), output[kept].double().softmax(1).numpy()
    loss = sklearn.log_loss(t, y, labels=range(y.shape[1]))
    return {
        "perplexity": float(np.exp(loss)),
        "next_token": sklearn.accuracy_score(t, y.argmax(1)),
    }


def copied(output: dict[str, Tensor], targets: Tensor) -> dict[str, float]:
    kept = targets >= 0
    return {"copied": sklearn.accuracy_score(targets[kept], output["logits"][kept].argmax(1))}


CASES = {
    "classification": Case(
        "classification",
        f"{HERE}:patches",
        {"name": f"{HERE}:Flat"},
        lambda y, t: _log_likelihood(y, t, -1),
        classified,
        {"image_size": 3, "channels": 1, "classes": 6, "mean": [0.4], "std": [0.2]},
    ),
    "regression": Case(
        "regression",
        f"{HERE}:numbers",
        {"name": f"{HERE}:Two", "options": {"inputs": 3, "outputs": 2}},
        lambda y, t: ((y - t) ** 2).mean(),
        regressed,
    ),
    "multi_label": Case(
        "multi_label",
        f"{HERE}:labelled",
        {"name": f"{HERE}:Two", "options": {"inputs": 5, "outputs": 4}},
        _binary,
        several,
    ),
    "segmentation": Case(
        "segmentation",
        f"{HERE}:masks",
        {"name": f"{HERE}:Maps"},
        lambda y, t: _log_likelihood(y.movedim(1, -1), t, 255),
        segmented,
    ),
    "own": Case(
        f"{HERE}:Copy",
        f"{HERE}:Sentences",
        {"name": f"{HERE}:Copier"},
        lambda y, t: _log_likelihood(y["logits"], t, -1),
        copied,
    ),
    "own-cubes": Case(
        f"{HERE}:Cubes",
        f"{HERE}:numbers",
        {"name": f"{HERE}:Two", "options": {"inputs": 3, "outputs": 2}},
        lambda y, t: 0.02 * ((y - t).abs() ** 3).sum() / len(t),
        lambda y, t: {"worst": float(((y - t).abs() ** 3).sum() / len(t))},
    ),
}
SEQUENCE = 16
LANGUAGE = ("language_model", "language_model-untied")
GPT = {"layers": 2, "heads": 2, "width": 16}


def write_text(folder: Path) -> Path:
    """Text of two splits; the last of its sequences of 16 tokens are shorter."""
    folder.mkdir(exist_ok=True)
    words = "gradient worker rank batch token epoch of the a and to sums".split()  # noqa: SIM905
    for split, count in (("train", 160), ("val", 41)):
        chosen = np.random.default_rng(count).choice(words, count)
        (folder / f"{split}.txt").write_text(" ".join(chosen))
    return folder


def spec_of(case: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """The spec of a case as data; `changes` replace whole blocks."""
    if case in LANGUAGE:
        own = {
            "task": "language_model",
            "data": {"name": "text", "path": str(write_text(folder)), "sequence": SEQUENCE},
            "model": {"name": "gpt", "options": {**GPT, "tied": case == LANGUAGE[0]}},
        }
    else:
        chosen = CASES[case]
        own = {
            "task": chosen.task,
            "data": {"name": chosen.data, **chosen.of_images},
            "model": chosen.model,
        }
    return {
        "name": "tasks",
        **own,
        "optimizer": {"name": "sgd", "lr": LR, "momentum": MOMENTUM},
        "training": {"epochs": EPOCHS, "global_batch": BATCH},
        "resources": {"device": "cpu"},
        "measure": {"warmup_steps": 1, "power": "off"},
        **changes,
    }


def samples_of(case: str, folder: Path, split: str) -> Any:
    """(number of samples, numbers -> (inputs, targets))."""
    if case in LANGUAGE:
        stream = torch.tensor(list((folder / f"{split}.txt").read_bytes()))
        count = -(-(len(stream) - 1) // SEQUENCE)

        def batch(chosen: list[int]) -> tuple[Tensor, Tensor]:
            rows = [stream[SEQUENCE * i : SEQUENCE * (i + 1) + 1] for i in chosen]
            inputs = [
                functional.pad(row[:SEQUENCE], (0, SEQUENCE - len(row[:SEQUENCE]))) for row in rows
            ]
            targets = [
                functional.pad(row[1:], (0, SEQUENCE + 1 - len(row)), value=-100) for row in rows
            ]
            return torch.stack(inputs), torch.stack(targets)

        return count, batch
    _, _, name = CASES[case].data.partition(":")
    made = globals()[name](split)
    collate = getattr(made, "collate", torch.utils.data.default_collate)
    if CASES[case].of_images:
        mean, std = (CASES[case].of_images[key][0] for key in ("mean", "std"))

        def pixels(chosen: list[int]) -> tuple[Tensor, Tensor]:
            images, labels = collate([made[i] for i in chosen])
            return (images.permute(0, 3, 1, 2) / 255 - mean) / std, labels

        return len(made), pixels
    return len(made), lambda chosen: collate([made[i] for i in chosen])


def called(network: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, list | tuple) else network(inputs)


def mean_loss_of(case: str) -> Callable[[Any, Any], Tensor]:
    if case in LANGUAGE:
        return lambda y, t: _log_likelihood(y, t, -100)
    return CASES[case].mean_loss


def metrics_of(case: str, output: Any, targets: Any) -> dict[str, float]:
    return (followed if case in LANGUAGE else CASES[case].metrics)(output, targets)


def plain(case: str, folder: Path, network: nn.Module, seed: int = 0) -> list[float]:
    """Train `network` in place by a loop as anyone writes it: the loss of each step."""
    count, batch = samples_of(case, folder, "train")
    optimizer = torch.optim.SGD(network.parameters(), LR, MOMENTUM)
    losses = []
    for epoch in range(EPOCHS):
        order = np.argsort(np.random.Philox(key=[seed, epoch]).random_raw(count), kind="stable")
        for start in range(0, count, BATCH):
            inputs, targets = batch(order[start : start + BATCH].tolist())
            loss = mean_loss_of(case)(called(network, inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses
