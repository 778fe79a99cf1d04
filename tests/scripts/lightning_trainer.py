"""Lightning's Trainer under torchrun: a validation and a checkpoint after each epoch."""

import json
import os
import sys
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        x, y = batch
        accuracy = (self.layers(x).argmax(1) == y).float().mean()
        self.log("accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Timer(lightning.Callback):
    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        if trainer.global_step > len(self.ends):
            self.ends.append(time.perf_counter())


def main() -> None:
    batch, passes, folder = int(sys.argv[1]), 2, sys.argv[2]
    ranks = int(os.environ["WORLD_SIZE"])
    lightning.seed_everything(0)
    samples = 20 * batch * passes * ranks
    data = TensorDataset(torch.randn(samples, 64), torch.zeros(samples, dtype=torch.long))
    timer = Timer()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp",
        max_epochs=2,
        accumulate_grad_batches=passes,
        callbacks=[timer],
        logger=False,
        enable_progress_bar=False,
        default_root_dir=folder,
    )
    loader = DataLoader(data, batch, shuffle=True)
    trainer.fit(Net(), loader, DataLoader(data, batch))
    print("TIMER", json.dumps(timer.ends))


if __name__ == "__main__":
    main()
