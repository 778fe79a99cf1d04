"""Aach et al. 2023: what is known of up to 64 GPUs, extrapolated to 128 to 1,024, beside what was
published. Writes results/prediction_aach.md.

    python benchmarks/prediction_aach.py

Table 2 gives shares of a step's time. Over the computation, which each GPU has the same of
(64 images), the whole of a step is t = 100 / computation share, and communication is
c = communication share / computation share. Both are fitted to 4, 8, 16, 32 and 64 GPUs of each
network and loader as a sum of terms without negative costs, with N nodes of 4 GPUs. Which terms is
decided by those numbers alone: the form whose fits to at most 32 GPUs predict 64 best. Efficiency
is t(4) / t(G).
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

from raysuite.perf.calibration import fit

PER_NODE, LARGEST = 4, 64
Row = dict[str, str]
Points = dict[int, float]
"""By number of GPUs."""
Terms = Callable[[int], dict[str, float]]

OURS: dict[str, Terms] = {
    "tree": lambda gpus: {"fixed": 1.0, "tree": math.log2(gpus / PER_NODE)},
    "ring": lambda gpus: {"fixed": 1.0, "ring": gpus / PER_NODE - 1},
    "tree and ring": lambda gpus: {
        "fixed": 1.0,
        "tree": math.log2(gpus / PER_NODE),
        "ring": gpus / PER_NODE - 1,
    },
    "slowest of all": lambda gpus: {"fixed": 1.0, "slowest": math.sqrt(2 * math.log(gpus))},
}
"""Messages one after the other in a tree or a ring between nodes; or the expected largest of G
normal delays, to first order."""
OTHERS: dict[str, Terms] = {
    "Amdahl": lambda gpus: {"parallel": 1.0, "serial": gpus / PER_NODE},
    "equation 1": lambda gpus: {"fixed": 1.0, "ring": 2 * (gpus - 1) / gpus},
    "ideal": lambda gpus: {"fixed": 1.0},
}
"""Amdahl 1967 with the serial part fitted; DDLBench's equation 1 with its bandwidth term fitted."""


def table(name: str) -> list[Row]:
    text = files("raysuite.report.published").joinpath(name).read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def fitted(points: Points, terms: Terms, largest: int = LARGEST) -> Callable[[int], float]:
    """Fitted to at most `largest` GPUs."""
    known = {gpus: value for gpus, value in points.items() if gpus <= largest}
    names = [str(gpus) for gpus in known]
    model = fit([terms(gpus) for gpus in known], list(known.values()), names, names)
    return lambda gpus: model.value(terms(gpus))


def error_at_64(terms: Terms) -> float:
    """Mean error of t at 64 GPUs, predicted from at most 32."""
    found = []
    for points in series().values():
        whole = {gpus: t for gpus, (t, _) in points.items()}
        found.append(abs(fitted(whole, terms, 32)(64) / whole[64] - 1))
    return statistics.mean(found)


def series() -> dict[tuple[str, str], dict[int, tuple[float, float]]]:
    """(network, loader) -> GPUs -> (t, c)."""
    found: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for row in table("aach2023_table2.csv"):
        computation = float(row["computation_percent"])
        whole, sent = 100 / computation, float(row["communication_percent"]) / computation
        found.setdefault((row["model"], row["loader"]), {})[int(row["gpus"])] = whole, sent
    return found


def shares(chosen: str) -> tuple[list[tuple[str, ...]], dict[str, list[float]]]:
    """Lines against Table 2, and each form's errors of the efficiency."""
    forms, shown = {**OURS, **OTHERS}, (chosen, *OTHERS)
    lines: list[tuple[str, ...]] = []
    errors: dict[str, list[float]] = {name: [] for name in forms}
    for (network, loader), points in series().items():
        whole = {gpus: t for gpus, (t, _) in points.items()}
        sent = {gpus: c for gpus, (_, c) in points.items()}
        models = {name: fitted(whole, terms) for name, terms in forms.items()}
        share = fitted(sent, OURS[chosen])
        for gpus in sorted(gpus for gpus in points if gpus > LARGEST):
            efficiency = whole[4] / whole[gpus]
            made = {name: model(4) / model(gpus) for name, model in models.items()}
            for name, value in made.items():
                errors[name].append(value / efficiency - 1)
            published = 100 * sent[gpus] / whole[gpus]
            predicted = 100 * share(gpus) / models[chosen](gpus)
            lines.append(
                (
                    network,
                    loader,
                    str(gpus),
                    f"{published:.1f} %",
                    f"{predicted:.1f} %",
                    f"{predicted / published - 1:+.0%}",
                    f"{efficiency:.2f}",
                    *(f"{made[name]:.2f} ({made[name] / efficiency - 1:+.0%})" for name in shown),
                )
            )
    return lines, errors


def stated(chosen: str) -> list[tuple[str, ...]]:
    """Lines against the efficiencies that the text states."""
    known, lines = series(), []
    for row in table("aach2023.csv"):
        gpus = int(row["workers"] or 0)
        if row["quantity"] != "efficiency" or gpus <= LARGEST:
            continue
        loader = "native" if row["loader"] == "native" else "dali"
        whole = {gpus: t for gpus, (t, _) in known[row["model"], loader].items()}
        model = fitted(whole, OURS[chosen])
        predicted, value = model(4) / model(gpus), float(row["value"])
        holds = {"over": predicted > value, "under": predicted < value}.get(row["bound"])
        told = f"{predicted / value - 1:+.0%}" if holds is None else "holds" if holds else "broken"
        what = f"{row['bound']} {value:.2f}".strip()
        who = " ".join(filter(None, (row["framework"], row["loader"])))
        table_2 = f"{whole[4] / whole[gpus]:.2f}" if gpus in whole else "–"
        lines.append((row["model"], who, str(gpus), what, f"{predicted:.2f}", told, table_2))
    return lines


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def median(values: Sequence[float]) -> float:
    return statistics.median(abs(value) for value in values)


def main() -> None:
    choice = {name: error_at_64(terms) for name, terms in OURS.items()}
    chosen = min(choice, key=lambda name: choice[name])
    lines, errors = shares(chosen)
    header = ["Network", "Loader", "GPUs", "Communication, published", "predicted", "error"]
    header += ["E by Table 2", *(f"E, {name}" for name in (chosen, *OTHERS))]
    summary = [
        (
            name,
            f"{choice[name]:.1%}" if name in choice else "–",
            f"{median(each):.1%}",
            f"{statistics.quantiles(map(abs, each), n=10)[-1]:.0%}",
            f"{max(map(abs, each)):.0%}",
        )
        for name, each in errors.items()
    ]
    text = "\n\n".join(
        [
            "# Aach et al. 2023, extrapolated from 64 GPUs",
            "Written by `benchmarks/prediction_aach.py`, from the paper's figures alone; nothing "
            "was measured. Each form is fitted to the five numbers of GPUs up to 64 of one network "
            f"and loader, and extrapolated to more. `{chosen}` is the form whose fits to at most "
            "32 GPUs predict 64 best; no number above 64 has a part in this rule, but the rule was "
            "written after the errors of `tree and ring` had been seen. All errors are shown.",
            f"## Errors of the efficiency E at 128 to 1,024 GPUs ({len(lines)} cells)",
            markdown(
                ["Form", "mean error at 64, from 32", "median", "90th percentile", "largest"],
                summary,
            ),
            "The largest are those of the native loader on ResNet-50: from 256 GPUs on its file "
            "system is the bottleneck, and nothing up to 64 GPUs shows it.",
            "## Table 2",
            "E by Table 2: the efficiency that its shares of computation amount to, against 4 "
            "GPUs.",
            markdown(header, lines),
            "## Efficiencies that the text states",
            "The text measures throughput of each framework; Table 2, from which the prediction "
            "is, has kernel times without a framework's name, and differs from it: the last column "
            "is what Table 2 itself amounts to.",
            markdown(
                ["Network", "Which", "GPUs", "stated", "predicted", "error", "by Table 2"],
                stated(chosen),
            ),
        ]
    )
    file = Path(__file__).parent / "results" / "prediction_aach.md"
    file.write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
