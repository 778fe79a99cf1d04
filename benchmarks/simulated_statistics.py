"""Simulate how often a report's statistics are wrong, and how often they find a true difference.
Each line has 10,000 reports, computed by the functions of `raysuite.records.statistics` that a
report calls.

    .venv/bin/python benchmarks/simulated_statistics.py

Throughputs are exp(round + run), with normal noise of 2 % between runs, and of 0 or 10 % between
rounds, which all variants share. Epochs of a run have a further 2 % of noise. "Before" means the
rules of an earlier version: Welch's t at 0.05 / (K - 1), modified z-scores above 3.5, and a first
epoch that is below all others by more than their range. Writes results/simulated_statistics.md.

The file is not called statistics.py, because it would hide Python's module of that name from the
other scripts in this folder.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from raysuite.records.statistics import (
    FEWEST_REPEATS,
    LEVEL,
    PAIRED_FROM,
    accuracy,
    caveat_level,
    log_ratios,
    outlying,
    slow_start,
    summarize,
    t_quantile,
    wilson,
)

REPORTS = 10_000
NOISE, DRIFT, GAIN, EPOCHS = 0.02, 0.10, 0.10, 6
RESULTS = Path(__file__).parent / "results" / "simulated_statistics.md"


def throughputs(chance: Any, K: int, n: int, drift: float, noise: Any = NOISE) -> Any:
    """Throughputs [reports, K, n] of K equal variants with n repeats."""
    rounds = chance.normal(0, drift, (REPORTS, 1, n))
    noise = np.broadcast_to(noise, K)[:, None]
    return np.exp(rounds + noise * chance.normal(0, 1, (REPORTS, K, n)))


def faster(values: Any, level: float = LEVEL) -> Any:
    """[reports, K]: whether the variant with the highest mean is called faster than variant k."""
    n = values.shape[-1]
    ratios, reach = log_ratios(values, n >= PAIRED_FROM, level)
    return _of_best(values, ratios - reach) > 0


def faster_before(values: Any) -> Any:
    K, n = values.shape[-2:]
    mean = values.mean(-1)
    own = values.var(-1, ddof=1) / n / mean**2
    variance = own[..., :, None] + own[..., None, :]
    freedom = variance**2 * (n - 1) / (own[..., :, None] ** 2 + own[..., None, :] ** 2)
    t = t_quantile(1 - 0.05 / (K - 1) / 2, freedom)
    ratios = np.log(mean)[..., :, None] - np.log(mean)[..., None, :]
    return _of_best(values, ratios - t * np.sqrt(variance)) > 0


def _of_best(values: Any, pairs: Any) -> Any:
    best = values.mean(-1).argmax(-1)
    found = pairs[np.arange(len(best)), best]
    found[np.arange(len(best)), best] = -math.inf
    return found


def finds(claimed: Any, values: Any) -> float:
    """Share of reports in which the first variant is called faster than all others."""
    first = values.mean(-1).argmax(-1) == 0
    return float((first & claimed[:, 1:].all(-1)).mean())


def caveats(values: Any, speeds: Any) -> tuple[float, float]:
    """Shares of reports with an outlier, and with a slow first epoch."""
    level = caveat_level(values.shape[1])
    return (
        float(outlying(values, level).any((-1, -2)).mean()),
        float(slow_start(speeds, level)[0].any(-1).mean()),
    )


def caveats_before(values: Any, speeds: Any) -> tuple[float, float]:
    middle = np.median(values, -1, keepdims=True)
    apart = abs(values - middle)
    score = 0.6745 * apart / np.median(apart, -1, keepdims=True)
    far = score.max(-1) > 3.5 if values.shape[-1] >= FEWEST_REPEATS else np.zeros(1, bool)
    first, later = speeds[..., 0], speeds[..., 1:]
    late = first < 2 * later.min(-1) - later.max(-1)
    return float(far.any(-1).mean()), float(late.any((-1, -2)).mean())


def percent(*shares: float) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def claims() -> list[str]:
    lines = [
        '| K | n | drift | wrong "faster" | before | noise 5 times as large in one variant '
        "| finds +10 % | before | outlier named | before | slow first epoch | before |",
        "| ---: | ---: | ---: |" + " ---: |" * 9,
    ]
    for K in (2, 6, 12, 24):
        for n in (3, 5, 10):
            for drift in (0.0, DRIFT):
                chance = np.random.default_rng([K, n, drift > 0])
                null = throughputs(chance, K, n, drift)
                uneven = throughputs(chance, K, n, drift, [5 * NOISE] + [NOISE] * (K - 1))
                better = throughputs(chance, K, n, drift)
                better[:, 0] *= 1 + GAIN
                speeds = null[..., None] * np.exp(chance.normal(0, NOISE, (*null.shape, EPOCHS)))
                new, old = caveats(null, speeds), caveats_before(null, speeds)
                cells = [
                    f"{K} | {n} | {drift:.0%}",
                    percent(faster(null).any(-1).mean()),
                    percent(faster_before(null).any(-1).mean()),
                    percent(faster(uneven).any(-1).mean()),
                    percent(finds(faster(better), better)),
                    percent(finds(faster_before(better), better)),
                    *(percent(a) for pair in zip(new, old, strict=True) for a in pair),
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def coverage() -> list[str]:
    """Lines with the coverage of each kind of interval that a report has."""
    lines = ["| interval | n | drift | covers, % |", "| --- | ---: | ---: | ---: |"]

    def line(name: str, n: int, drift: float, low: Any, high: Any, truth: float) -> None:
        covers = percent(((low <= truth) & (truth <= high)).mean())
        lines.append(f"| {name} | {n} | {drift:.0%} | {covers} |")

    def ends(found: Any) -> Any:
        return np.array([(stat.low, stat.high) for stat in found]).T

    for n in (3, 5, 10):
        for drift in (0.0, DRIFT):
            chance = np.random.default_rng([n, drift > 0])
            values = throughputs(chance, 2, n, drift)
            truth = math.exp((NOISE**2 + drift**2) / 2)
            line("mean", n, drift, *ends(map(summarize, values[:, 0])), truth)
            ratios, reach = (each[:, 0, 1] for each in log_ratios(values, n >= PAIRED_FROM))
            line("ratio (speed-up, efficiency)", n, drift, ratios - reach, ratios + reach, 0.0)
        chance = np.random.default_rng(n)
        share = chance.beta(30, 70, (REPORTS, n))
        line("share (data wait, MFU)", n, 0, *ends(summarize(each, "share") for each in share), 0.3)
        for images, p in ((100, 0.7), (1000, 0.9)):
            seeds = chance.normal(0, 0.01, (REPORTS, n))
            found = chance.binomial(images, p, (REPORTS, 1)) / images + seeds
            line(
                f"accuracy, {images} images, 1 point between seeds",
                n,
                0,
                *ends(accuracy(each, images) for each in found),
                p,
            )
    chance = np.random.default_rng(1)
    for images, p in ((100, 0.7), (1000, 0.9)):
        line(
            f"accuracy, {images} images", 1, 0,
            *wilson(chance.binomial(images, p, REPORTS) / images, images), p,
        )  # fmt: skip
    return lines


def main() -> None:
    text = "\n".join(
        [
            "# Simulated reports",
            "",
            f"{REPORTS:,} for each line; written by benchmarks/simulated_statistics.py. Per cent.",
            "",
            *claims(),
            "",
            *coverage(),
            "",
        ]
    )
    RESULTS.write_text(text, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
