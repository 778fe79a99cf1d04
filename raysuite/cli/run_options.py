"""Arguments and options that several verbs have in common, and groups of verbs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from raysuite.errors import UserError

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

_KINDS = {
    "str": "TEXT",
    "path": "PATH",
    "int": "N",
    "int range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
}


def with_words(option: str) -> str:
    """Write Typer's `--gpus <int range>` as `--gpus N`, and choices without their brackets."""
    return re.sub(r"<([^>]*)>", lambda kind: _KINDS.get(kind[1], kind[1]), option)


class Command(TyperCommand):
    """A verb whose help writes every value in capitals: `SPEC`, `[RESULTS]`, `[KEY=VALUE]...`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the usage line after the verb."""
        return [str(self.options_metavar), *map(_place_of, self._arguments(ctx))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments = [
            (_place_of(each), each.get_help_record(ctx)[1]) for each in self._arguments(ctx)
        ]
        records = [
            param.get_help_record(ctx)
            for param in self.get_params(ctx)
            if param.param_type_name == "option"
        ]
        options = [(with_words(record[0]), record[1]) for record in records if record]
        for title, lines in (("Arguments", arguments), ("Options", options)):
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def _arguments(self, ctx: Any) -> list[Any]:
        return [each for each in self.get_params(ctx) if each.param_type_name == "argument"]


def _place_of(argument: Any) -> str:
    """The text of an argument in the usage line: `SPEC`, `[RESULTS]...`."""
    written = argument.metavar or argument.name.upper()
    if argument.nargs != 1 and not written.endswith("..."):
        written += "..."
    bare = written.removesuffix("...")
    return written if argument.required or "[" in bare else f"[{bare}]{written[len(bare) :]}"


def group(about: str, *verbs: Callable[..., None]) -> typer.Typer:
    """A group of verbs. The name of a verb is that of its function, up to the first underscore."""
    made = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, context_settings=HELP_OPTIONS, help=about
    )
    for verb in verbs:
        made.command(verb.__name__.partition("_")[0], cls=Command)(verb)
    return made


def file_to_write(path: Path | None) -> Path | None:
    """Check an option's path. Raises UserError if no file can be written there."""
    return _place(path, "folder", "file")


def folder_to_write(path: Path | None) -> Path | None:
    """Check an option's path. Raises UserError if no folder can be written there."""
    return _place(path, "file", "folder")


def _place(path: Path | None, wrong: str, right: str) -> Path | None:
    if path is not None:
        above = next(each for each in path.absolute().parents if each.exists())
        if not above.is_dir():
            raise UserError(f"{path}: {above} is a file; give a {right} elsewhere")
        if not os.access(above, os.W_OK | os.X_OK):
            raise UserError(f"{path}: {above} cannot be written; give a {right} elsewhere")
        if path.is_dir() if right == "file" else path.is_file():
            raise UserError(f"{path} is a {wrong}; give a {right}")
    return path


Spec = Annotated[
    Path | None,
    typer.Argument(metavar="SPEC", help="The experiment's YAML file.", show_default=False),
]
SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="The experiment's YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Override keys of the spec.")
]
Scale = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Use the form of the experiment that has this name in the spec's `scales`, such as "
        "laptop.",
    ),
]


def head_to_join(ctx: typer.Context, address: str | None) -> str | None:
    """Check an option's address, which should be HOST:PORT of Ray's head. Raises UserError for a
    URL: `raysuite cluster status --env` sets RAY_ADDRESS to the URL of Ray's job server."""
    if address and address.startswith(("http://", "https://")):
        verb = ctx.command_path.partition(" ")[2]
        raise UserError(
            f"address {address!r} (--address or RAY_ADDRESS) is only for submitting jobs; submit "
            f"the command as a job, by `ray job submit -- raysuite {verb} ...`, or give "
            "--address HOST:PORT of the cluster's head"
        )
    return address


Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        envvar="RAY_ADDRESS",
        callback=head_to_join,
        help="Join this Ray cluster instead of starting one.",
    ),
]
Root = Annotated[
    Path,
    typer.Option("--results", metavar="FOLDER", help="Folder in which NAME/DATE-TIME is created."),
]
Resume = Annotated[bool, typer.Option(help="Resume the newest results of this experiment.")]
ResumeFrom = Annotated[
    Path | None, typer.Option(metavar="RESULTS", help="Resume the results in this folder.")
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="When resuming: repeat the runs that failed.")
]
DryRun = Annotated[bool, typer.Option(help="Print what would be done, and exit.")]
Mlflow = Annotated[bool, typer.Option(help="Send the records to MLflow.")]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        envvar="MLFLOW_TRACKING_URI",
        help="MLflow tracking URI; default: sqlite:///mlflow.db.",
    ),
]
StoreExperiment = Annotated[
    str | None,
    typer.Option(
        "--experiment", metavar="NAME", help="MLflow experiment; default: the spec's name."
    ),
]
RunResults = Annotated[
    Path, typer.Argument(metavar="RESULTS", help="Results folder, as `raysuite run` printed it.")
]
SeveralResults = Annotated[
    list[Path],
    typer.Argument(metavar="RESULTS...", help="Results folders, as `raysuite run` printed them."),
]
BestRun = Annotated[
    bool,
    typer.Option(
        "--best",
        help="Use the best run: in a sweep by its first goal, otherwise by the final value of the "
        "primary metric.",
    ),
]
StopWithin = Annotated[
    float,
    typer.Option(
        "--stop-within",
        metavar="SECONDS",
        min=0,
        help="Time for workers to write a checkpoint after SIGTERM, SIGHUP or SIGUSR1.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only failures and the results folder.")
]
RecordsAsJson = Annotated[
    bool, typer.Option("--json", help="Print every record as a line of JSON.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Number of processes per machine; default: one per CPU.")
]
Gpus = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Plan for a cluster with N GPUs; a named data set that is not on this machine is "
        "assumed to have its official size. Default: the GPUs of this machine.",
    ),
]
CalibratedGpus = Annotated[
    int | None,
    typer.Option(
        min=0, help="GPUs of the cluster; default: no limit, or 0 for a calibration on CPUs."
    ),
]
ShowTimings = Annotated[
    bool, typer.Option("--timings", help="Show the wall time by phase and by run.")
]

Budget = Annotated[
    float | None,
    typer.Option(
        "--budget",
        metavar="TIME",
        parser=lambda text: budget_seconds(text),
        help="Execute each variant up to 30 times, until this time (such as 90s, 5m or 1h) is "
        "over, or the 95 % confidence interval of its throughput is at most ±5 % of the mean.",
    ),
]


def budget_seconds(text: str) -> float:
    """Convert `90s`, `5m` or `1.5h` to seconds. Raises UserError for any other text."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh])", text.strip())
    if found is None or float(found[1]) == 0:
        raise UserError(f"--budget: got {text!r}; valid: a time such as 90s, 5m or 1h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def numbers(option: str, given: str, least: int = 1) -> list[int]:
    """Convert `1,2,4` to distinct numbers, in the given order. Raises UserError for other texts,
    and for numbers < `least`."""
    words = [word.strip() for word in given.split(",")]
    if not all(word.isdecimal() and int(word) >= least for word in words):
        raise UserError(
            f"{option}: got {given!r}; valid: whole numbers from {least} on, such as 1,2,4"
        )
    return list(dict.fromkeys(map(int, words)))


def gpus_before(address: str | None) -> int | None:
    """The number of GPUs for which runs are planned before the driver connects to Ray. None means
    this machine's GPUs. For an existing cluster the number is so large that it limits no plan."""
    return sys.maxsize if address else None
