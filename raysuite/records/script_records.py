"""Make the Records of a training script's run from the measurements of its ranks.

`raysuite.measure.script_steps` writes the ranks' files. A step's time is measured from the end of
the previous step to its own end, on its slowest rank. The counted steps are those after the
warm-up, except steps that follow an evaluation or a pause longer than two steps (such as for a
checkpoint), because their time includes more than a step.

Monotonic clocks differ between hosts. Ranks are therefore compared in seconds since the launch,
which is the same moment on all hosts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, median_low
from typing import Any, Literal

from raysuite.errors import some
from raysuite.records.ends import RunFinished
from raysuite.records.power import PowerUse, counter_name
from raysuite.records.schema import (
    EpochFinished,
    GateVerdict,
    Record,
    RunCosts,
    ScriptMeasured,
    TimeShares,
)

_SAMPLES, _TOKENS = 3, 4
"""Columns of `RankLog.rows`."""
_PAUSE = 2.0
"""Shortest pause, relative to the median duration of a step, after which a step is left out."""


@dataclass
class RankLog:
    """The content of a rank's file, which may be incomplete; times are seconds since the launch."""

    begin: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    rows: list[list[Any]] = field(default_factory=list)
    """One row for each step: end, device seconds, wait, samples, tokens, whether an evaluation
    preceded the step, idle seconds."""
    checks: list[dict[str, Any]] = field(default_factory=list)
    profile: dict[str, Any] = field(default_factory=dict)
    """The parts of the profiled window, in seconds: see `raysuite.measure.shares.Parts`."""
    power: dict[str, Any] = field(default_factory=dict)
    """The last reading of the energy counters, in joules since the first step."""
    end: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> RankLog:
        """Read a rank's file, if it exists."""
        return cls.parsed(file.read_text("utf-8") if file.exists() else "")

    @classmethod
    def parsed(cls, text: str) -> RankLog:
        """Parse the text of a rank's file. An incomplete last line is left out."""
        log = cls()
        for line in text.split("\n")[:-1]:
            content = json.loads(line)
            match content.pop("kind"):
                case "begin":
                    log.begin = content
                case "model":
                    log.model = content
                case "steps":
                    log.rows += content["rows"]
                case "marked":  # steps of raysuite.mark replace those of the optimiser
                    log.rows.clear()
                    log.checks.clear()
                case "check":
                    log.checks.append(content)
                case "profile":
                    log.profile = content
                case "power":
                    log.power = content
                case "end":
                    log.end = content
        launched = log.begin.get("launched", 0.0)
        log.rows = [[end - launched, *rest] for end, *rest in log.rows]
        for column in (_SAMPLES, _TOKENS):
            _count_where_trained(log.rows, column)
        if log.power:
            log.power["at"] -= launched
        if "marks" in log.end:
            log.end["marks"] = {name: at - launched for name, at in log.end["marks"].items()}
        return log

    @property
    def marks(self) -> dict[str, float]:
        found: dict[str, float] = self.end.get("marks", {})
        return found


def _count_where_trained(rows: Sequence[list[Any]], column: int) -> None:
    """If a loader reads ahead, count the samples in the steps that train on them, not in the steps
    in which they were read.

    Accelerate's loader, for example, reads ahead to know which batch is the last: the first step of
    a pass then reads more samples than the others, and the last step fewer by the same number.
    """
    read = [row[column] for row in rows]
    if not read or None in read:
        return
    typical = median_low(read)
    ahead, held = read[0] - typical, False
    for row in rows if ahead > 0 else ():
        if not held and row[column] >= typical + ahead:
            row[column] -= ahead
            held = True
        elif held and row[column] <= typical - ahead:
            row[column] += ahead
            held = False


@dataclass(frozen=True)
class Steps:
    """The timed steps of all ranks together."""

    taken: int
    """Steps that every rank took."""
    counted: list[int]
    """Indices of the counted steps: after the warm-up, and not after an evaluation or a pause."""
    left_out: int
    ranks: list[list[float]]
    """[rank, taken]: seconds of each step; 0 for the first step."""

    @cached_property
    def seconds(self) -> list[float]:
        """[taken]: seconds of each step on its slowest rank."""
        return [max(each) for each in zip(*self.ranks, strict=True)]

    @cached_property
    def total_s(self) -> float:
        """Total seconds of the counted steps on the slowest rank: less than their sum in `seconds`
        if a rank is late in one step and catches up in the next."""
        return max(math.fsum(own[place] for place in self.counted) for own in self.ranks)


def steps_of(logs: Sequence[RankLog], warmup: int) -> Steps:
    """Find the counted steps, and the seconds that each step took."""
    taken = min((len(log.rows) for log in logs), default=0)
    ranks = [
        [
            0.0 if place == 0 else row[0] - log.rows[place - 1][0] if row[1] is None else row[1]
            for place, row in enumerate(log.rows[:taken])
        ]
        for log in logs
    ]
    seconds = [max(each) for each in zip(*ranks, strict=True)]
    after = range(max(1, warmup), taken)
    typical = median([seconds[place] for place in after]) if after else 0.0

    def is_apart(place: int) -> bool:
        rows = [log.rows[place] for log in logs]
        paused = seconds[place] > _PAUSE * typical
        return any(row[5] or (paused and row[6] > _PAUSE * typical) for row in rows)

    counted = [place for place in after if not is_apart(place)]
    return Steps(taken, counted, len(after) - len(counted), ranks)


def too_few(steps: Steps, warmup: int, code: int) -> str:
    """Why a run that ended with exit code `code` has no throughput; empty if it has one."""
    if steps.taken == 0:
        return (
            f"the script ended with exit code {code}, and at least one rank took no step of a "
            "torch optimiser; if it trains without one, add `raysuite.mark.step(samples=...)` "
            "after each step"
        )
    if not steps.counted:
        apart = f", and {steps.left_out} follow an evaluation or a pause" if steps.left_out else ""
        fewer = ", or give fewer --warmup-steps" if warmup > 1 else ""
        return (
            f"the script took {steps.taken} steps, of which the first {max(1, warmup)} are the "
            f"warm-up{apart}: no step is left to be timed; let it train longer{fewer}"
        )
    return ""


def _total(logs: Sequence[RankLog], steps: Steps, column: int) -> int | None:
    """The sum of a column over all ranks and counted steps; None if any value is unknown."""
    values = [log.rows[place][column] for log in logs for place in steps.counted]
    return None if None in values else sum(values)


def script_records(
    run_id: str, logs: Sequence[RankLog], steps: Steps, given: int | None, notes: Sequence[str] = ()
) -> list[Record]:
    """The Records of a script that ended successfully. `given`: samples per step over all ranks, if
    the user gave this number."""
    count, first = len(steps.counted), logs[0]
    marked = "mark" if first.model.get("optimizer") == "" else "loader"
    samples = given * count if given is not None else _total(logs, steps, _SAMPLES) or None
    tokens = _total(logs, steps, _TOKENS) or None
    source: Literal["given", "loader", "mark", ""] = ""
    if samples is not None:
        source = "given" if given is not None else marked  # type: ignore[assignment]
    parameters = first.model.get("parameters")
    seconds = steps.total_s
    waits = [math.fsum(log.rows[place][2] for place in steps.counted) for log in logs]
    ended = max(log.rows[steps.taken - 1][0] for log in logs)
    first_step = max(log.rows[0][0] for log in logs)
    starts = _starts([log.marks for log in logs])
    training = max(map(math.fsum, steps.ranks))
    parts = {phase: values[0] for phase, values in starts.items()}
    parts |= {"steps": training, "the end": _ends(logs) - ended}
    memory = [int(log.end.get("memory", 0)) for log in logs]
    return [
        ScriptMeasured(
            run_id=run_id,
            steps=steps.taken,
            left_out=steps.left_out,
            samples_per_step=None if samples is None else samples / count,
            samples_source=source,
            pass_samples=_pass_samples(logs),
            first_samples=_first_samples(logs),
            first_rates=first.model.get("rates", []),
            tokens_per_step=None if tokens is None else tokens / count,
            steps_per_second=count / seconds,
            parameters=parameters,
            optimizer=first.model.get("optimizer", ""),
            hosts=[str(log.begin.get("host", "")) for log in logs],
            start_seconds=starts,
            first_losses=first_losses(logs),
            without_energy=_without_energy(logs),
            notes=[*_notes(logs, steps), *notes],
        ),
        EpochFinished(
            run_id=run_id,
            epoch=0,
            first_step=0,
            losses=[],
            learning_rates=[],
            images=samples or 0,
            seconds=seconds,
            steady_images=samples or 0,
            steady_seconds=seconds,
            step_seconds=[steps.seconds[place] for place in steps.counted],
            data_wait_seconds=waits,
            validation_seconds=0.0,
            train_loss=math.nan,
            val_loss=math.nan,
            val_accuracy=math.nan,
            elapsed_seconds=ended,
            power=_power(logs, steps),
        ),
        RunCosts(
            run_id=run_id,
            parameters=parameters,
            forward_flops=None,
            gradient_bytes=None if parameters is None else 4 * parameters,
            message=""
            if parameters
            else "the script has no torch optimiser, or each rank holds a part of the parameters",
        ),
        RunFinished(
            run_id=run_id,
            peak_process_bytes=memory,
            start_process_bytes=[int(log.begin.get("memory", 0)) for log in logs],
            peak_device_bytes=[int(log.end.get("device_memory", 0)) for log in logs],
            time_to_accuracy=None,
            seconds=_ends(logs),
            first_step_seconds=first_step,
            parts_seconds=parts,
        ),
    ]


def _power(logs: Sequence[RankLog], steps: Steps) -> PowerUse | None:
    """Energy used during the counted steps: the total duration of these steps, multiplied by the
    mean power from the first step to the last reading of the energy counters."""
    if not all(log.model.get("counters") for log in logs):
        return None

    def joules(name: str) -> list[float | None]:
        found: list[float | None] = []
        for log in logs:
            value = log.power.get(name)
            seconds = log.power.get("at", 0.0) - log.rows[0][0]
            known = value is not None and seconds > 0
            found.append(value / seconds * steps.total_s if known else None)
        return found

    counters = [log.model["counters"] for log in logs]
    if not any(each["device"] or each["host"] for each in counters):
        return None
    return PowerUse(
        devices=[counter_name(each["device"]) for each in counters],
        device_joules=joules("device_joules"),
        device_busy=[log.power.get("device_busy") for log in logs],
        hosts=[counter_name(each["host"]) for each in counters],
        host_joules=joules("host_joules"),
    )


def _without_energy(logs: Sequence[RankLog]) -> str:
    """Why some energy was not measured, and on which hosts; empty if measured or not requested."""
    places: dict[str, list[str]] = {}
    for log in logs:
        for reason in log.model.get("counters", {}).get("missing", []):
            places.setdefault(reason, []).append(str(log.begin.get("host", "")))
    if not places and any(log.model.get("counters") and not log.power for log in logs):
        return "energy is not measured, because training ended within a second of its first step"
    return "; ".join(
        f"{reason} ({some(sorted(set(hosts)), 8)})" for reason, hosts in places.items()
    )


def time_shares(
    run_id: str, logs: Sequence[RankLog], steps: int, first: int, trace: str
) -> TimeShares:
    """Time shares of the profiled steps, or why they are not known."""
    message = ""
    if not all(log.profile for log in logs):
        message = f"the script took too few steps for a profile, which takes {first + steps} steps"
    elif any(log.model.get("device") == "gpu" and not log.profile["kernels"] for log in logs):
        message = "no time shares: the profiler saw no kernel on a GPU"
    known = [] if message else [log.profile for log in logs]

    def each(name: str) -> list[float]:
        return [float(profile[name]) for profile in known]

    return TimeShares(
        run_id=run_id,
        steps=steps,
        warmup_steps=first,
        window_seconds=each("window"),
        computation_seconds=each("computation"),
        communication_seconds=each("communication"),
        communication_exposed_seconds=each("communication_exposed"),
        data_seconds=each("data"),
        data_exposed_seconds=each("data_exposed"),
        kernel_seconds={
            name: [float(profile["kernels"].get(name, 0.0)) for profile in known]
            for name in (known[0]["kernels"] if known else ())
        },
        sources=known[0]["sources"] if known else [],
        trace=trace if known else "",
        seconds=max((log.profile.get("seconds", 0.0) for log in logs), default=0.0),
        message=message,
    )


def _ends(logs: Sequence[RankLog]) -> float:
    return max(float(log.marks.get("ended", log.rows[-1][0])) for log in logs)


_PHASES = (
    ("launcher", "launcher", "process"),
    ("imports", "process", "group_begins"),
    ("process group", "group_begins", "group_formed"),
    ("model and first batch", "group_formed", "first_batch"),
    ("first step", "first_batch", "first_step"),
)
"""Name, begin and end of each phase of the start. If one of these events does not
occur, as in a script without a process group, the time of the next event is used."""


def _starts(marks: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Duration of each phase of the start, one value per rank; never negative."""
    order = ["launcher", "process", "group_begins", "group_formed", "first_batch", "first_step"]
    found: dict[str, list[float]] = {name: [] for name, _, _ in _PHASES}
    for each in marks:
        moments: dict[str, float] = {}
        later = each.get("first_step", math.inf)
        for name in reversed(order):
            later = moments[name] = min(each.get(name, later), later)
        for name, begin, end in _PHASES:
            found[name].append(moments[end] - moments[begin])
    return found


def _notes(logs: Sequence[RankLog], steps: Steps) -> list[str]:
    """Notes on unequal numbers of steps and on a rank that is slower than the others."""
    notes = []
    numbers = [len(log.rows) for log in logs]
    if len(set(numbers)) > 1:
        listed = some([str(number) for number in numbers], 8)
        notes.append(
            f"ranks took unequal numbers of steps: {listed}; only the first {steps.taken} count"
        )
    own = [_mean(log, steps) for log in logs]
    if min(own) > 0 and max(own) / min(own) > 1.1:
        slow = own.index(max(own))
        hosts = [str(log.begin.get("host", "")) for log in logs]
        where = f" on {hosts[slow]}" if len(set(hosts)) > 1 else ""
        notes.append(
            f"rank {slow}{where} is the slowest: its steps take {max(own) / min(own):.2f} times as "
            "long as those of the fastest rank, so the ranks do not wait for each other in each "
            "step"
        )
    return notes


def _mean(log: RankLog, steps: Steps) -> float:
    return fmean(log.rows[place][0] - log.rows[place - 1][0] for place in steps.counted)


# The check of the first steps.

LOSS_TOLERANCE = 1e-3
"""Largest relative difference of a loss from that of one worker. A different order of the additions
in fp32 changes a loss by about 1e-6. If gradients are averaged wrongly over two ranks, the loss
changes by a third or more after a few steps."""


def _of_all(logs: Sequence[RankLog], key: str) -> Iterator[list[Any]]:
    """For each checked step, the values of `key` on all ranks; ends before the first step in which
    a rank's value is unknown."""
    for checks in zip(*(log.checks for log in logs), strict=False):
        own = [check[key] for check in checks]
        if None in own:
            return
        yield own


def first_losses(logs: Sequence[RankLog]) -> list[float]:
    return [fmean(losses) for losses in _of_all(logs, "loss")]


def _first_samples(logs: Sequence[RankLog]) -> list[int]:
    return [sum(hashes) for hashes in _of_all(logs, "samples")]


def _pass_samples(logs: Sequence[RankLog]) -> int | None:
    own: list[Any] = [log.model.get("pass_samples") for log in logs]
    return None if None in own else sum(own)


def verdict(
    run_id: str,
    logs: Sequence[RankLog],
    steps: Steps,
    given: int | None,
    alone: Sequence[ScriptMeasured],
) -> tuple[GateVerdict | None, list[str]]:
    """Check the parameters, batches and losses of the first steps. Return the verdict, and notes.

    `given`: samples per step over all ranks, if the user gave this number. `alone`: measurements of
    all runs with one worker so far. The notes name findings that are unusual but allowed. The
    verdict is None if nothing could be compared; the notes then give the reasons.
    """
    notes: list[str] = []
    wrong = [*_unequal(logs, notes), *_same_samples(logs, steps, given, notes)]
    if not wrong:
        notes += _undivided(logs, alone)
    error, reason = _loss_error(logs, steps, alone)
    if reason:
        notes.append(f"equality of losses is not decidable, because {reason}")
    elif error > LOSS_TOLERANCE:
        wrong.append(
            f"losses differ from those of one worker by {error:.1%}; up to {LOSS_TOLERANCE:.1%} "
            "counts as equal"
        )
    first = logs[0].checks[0] if logs[0].checks else {}
    dropout = [name for name in logs[0].model.get("layers", []) if "Dropout" in name]
    if dropout and len({log.checks[0]["random"] for log in logs if log.checks}) == 1:
        notes.append("all ranks draw the same random numbers, also in dropout")
    sharded = bool(first.get("sharded", True))
    if sharded and reason and not wrong:
        return None, notes
    compared = [] if sharded else ["all ranks' parameters are bitwise equal"]
    compared += [] if reason else ["losses equal those of one worker on the same global batch"]
    return (
        GateVerdict(
            run_id=run_id,
            strategy="script",
            workers=len(logs),
            passed=not wrong,
            ranks_equal=not any("parameters differ" in each for each in wrong),
            error=error,
            error_batchnorm=0.0,
            tolerance=LOSS_TOLERANCE,
            rule=f"after each of the first steps: {' and '.join(compared)}",
            steps=min(len(log.checks) for log in logs),
            message="; ".join([*wrong, *notes]),
        ),
        notes,
    )


def _unequal(logs: Sequence[RankLog], notes: list[str]) -> Iterator[str]:
    """Yield an error for the first step in which a rank's parameters differ from those of rank 0.
    The error names the step, the rank and the parameters."""
    for checks in zip(*(log.checks for log in logs), strict=False):
        if any(check["sharded"] for check in checks):
            notes.append("equality of parameters is not decidable, because ranks hold shards")
            return
        first = checks[0]["parameters"]
        for rank, check in enumerate(checks):
            places = [n for n, own in enumerate(check["parameters"]) if [own] != first[n : n + 1]]
            if places or len(first) != len(check["parameters"]):
                names = logs[0].model.get("names", [])
                listed = some([names[n] if n < len(names) else str(n) for n in places], 3)
                yield (
                    f"parameters differ: rank {rank} from rank 0 after step {check['step']}, in "
                    f"{listed or 'number'}; wrap the network in DistributedDataParallel, or "
                    "average the gradients of these parameters over the ranks"
                )
                return


def _same_samples(
    logs: Sequence[RankLog], steps: Steps, given: int | None, notes: list[str]
) -> Iterator[str]:
    """Yield an error if ranks train on the same samples, because no sampler divides them."""
    ranks: dict[tuple[int, ...], list[str]] = {}
    for rank, own in enumerate(zip(*_of_all(logs, "samples"), strict=True)):
        ranks.setdefault(own, []).append(str(rank))
    same = next((each for own, each in ranks.items() if len(each) > 1 and any(own)), [])
    listed = f"ranks {some(same, 4)} train on the same samples"
    read = _total(logs, steps, _SAMPLES)
    different = math.inf if read is None else read / len(steps.counted) * len(ranks) / len(logs)
    if not any(map(any, ranks)):
        notes.append("samples are not compared, as the script read no tensors from a DataLoader")
    elif not same:
        return
    elif any(len(own) > len(set(own)) == 1 for own in ranks):
        notes.append(
            f"{listed}, but a rank reads the same samples in every step: whether samples are "
            "divided among ranks is not decidable"
        )
    elif given is not None and given <= different:
        notes.append(f"{listed}, which --samples-per-step counts once")
    else:
        yield (
            f"{listed} in the first {len(next(iter(ranks)))} steps: divide the samples among the "
            "ranks, such as by DistributedSampler; if ranks need the same samples (tensor or "
            "pipeline parallelism), give the number of different samples per step to "
            "--samples-per-step"
        )


def _undivided(logs: Sequence[RankLog], alone: Sequence[ScriptMeasured]) -> Iterator[str]:
    """Yield a note if a pass over each rank's DataLoader covers about as many samples as a pass in
    the run with one worker."""
    own = _pass_samples(logs)
    one = next((each.pass_samples for each in alone if each.pass_samples), None)
    if own and one and own > _UNDIVIDED * len(logs) * one:
        yield (
            "whether samples are divided among ranks is not decidable, because a pass over the "
            f"DataLoader of a rank has {own // len(logs)} samples, and a pass in the run with one "
            f"worker has {one}: use DistributedSampler, unless each rank has its own data set"
        )


_UNDIVIDED = 0.9
"""If a pass over a rank's DataLoader has more than this share of the samples of a pass in the run
with one worker, samples may not be divided among ranks. If two ranks divide the samples, each has a
share of 0.5, plus one batch at most."""


def _loss_error(
    logs: Sequence[RankLog], steps: Steps, alone: Sequence[ScriptMeasured]
) -> tuple[float, str]:
    """(Largest relative difference of a loss from one worker's loss, ""), or (NaN, why not
    compared)."""
    own = first_losses(logs)
    references = [each for each in alone if each.first_losses]
    layers = logs[0].model.get("layers", [])
    read, hashes = _total(logs, steps, _SAMPLES), _first_samples(logs)
    reason = ""
    if not own:
        reason = "the script does not call backward() on a scalar"
    elif not references:
        reason = "no run with one worker has losses on record"
    elif layers:
        reason = f"{' and '.join(layers)} depend on how a batch is divided"
    elif read is None or references[0].samples_per_step != read / len(steps.counted):
        reason = "the run with one worker had another global batch size"
    elif references[0].first_rates != logs[0].model.get("rates", []):
        reason = "the run with one worker had another learning rate"
    elif any(each.first_losses != references[0].first_losses for each in references):
        reason = "the losses of the runs with one worker differ between repeats"
    elif not any(hashes) or references[0].first_samples != hashes:
        reason = (
            "it is not known whether the run with one worker trained on the same samples in the "
            "same steps: the order of the samples, or their random augmentation, may depend on the "
            "number of workers"
        )
    if reason:
        return math.nan, reason
    pairs = list(zip(own, references[0].first_losses, strict=False))
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs), ""
