"""The command line `raysuite`. Each verb has its own file, imported when the verb is called.

Exit codes: 0 success; 1 failure of a run or a check; 2 bad input; 75 stopped, can be resumed; 130
interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from raysuite import __version__
from raysuite.cli.run_options import HELP_OPTIONS, Command
from raysuite.ending import end_process
from raysuite.errors import RaysuiteError, SpecError, StorageError, UserError, how_to_write, is_full
from raysuite.units import count

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

VERBS = {
    "plan": "Print every run of a spec, with its workers, batch sizes, learning rate and numbers "
    "of steps.",
    "run": "Execute every run of a spec and report the measurements.",
    "sweep": "Search the space of a spec's `search` section, and report the best trials.",
    "scale": "Measure how a training script scales: throughput, speed-up and efficiency, with "
    "intervals.",
    "watch": "Show the progress of runs or trials of another process, until they have ended.",
    "report": "Write report.html, tables and plots of a results folder, and print the table.",
    "calibrate": "Fit a cost model of this machine to measured runs, and state its errors.",
    "predict": "Predict throughput, times, speed-up and memory of each run, with 90 % intervals.",
    "simulate": "Simulate one optimiser step of each run, task by task.",
    "recommend": "Rank strategies, batch sizes and numbers of workers by predicted time or energy "
    "of an epoch, and write a spec.",
    "models": "Print parameters, forward FLOPs and activation bytes of networks.",
    "doctor": "Test every part (Ray, Horovod, DeepSpeed, DALI, ...) and show how to repair the "
    "broken ones.",
    "verify": "Check strategies with the gate: the weights of all ranks must be equal, and equal "
    "to those of one process.",
    "sync": "Write the journals of a results folder to MLflow or another logger.",
    "register": "Register a trained network as a model in MLflow, with its signature and its spec.",
    "evaluate": "Evaluate a run's network on a data set: the metrics of its task, and the classes "
    "that a classifier confuses.",
    "ui": "Open MLflow's table of the newest results, from a server that only you can use, until "
    "Ctrl-C.",
    "data": "Make, convert and check data sets.",
    "bench": "Time data loaders, or try batch sizes, without a whole training run.",
    "cluster": "Start, watch and stop a Ray cluster of your own: on this machine, on the nodes of "
    "a SLURM site, or on a list of hosts.",
    "check": "Run a small fixed suite on a site, and compare its throughput with earlier checks.",
    "job": "Submit jobs to a cluster, follow and cancel them; from a laptop too, through SSH.",
    "image": "Build and verify Apptainer images.",
}
"""Verb -> the first sentence of its help, in the order of `raysuite --help`."""
_MODULES = {"sweep": "run", "calibrate": "predict", "sync": "register"}
"""Verb -> the module that defines it, if the module's name is not the verb."""


class _Verbs(TyperGroup):
    """Import only the verb that is called; turn raysuite's errors into a message and an exit code.

    `--help` and completion need only the names of the verbs and the first sentences of their help.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, about in VERBS.items():
            self.add_command(TyperCommand(name, help=about))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and load_verb(str(name)), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise typer.Exit(_complain(error, BAD_INPUT)) from error
        except RaysuiteError as error:
            raise typer.Exit(_complain(error, FAILED)) from error
        except OSError as error:
            if not (is_full(error) or isinstance(error, PermissionError)):
                raise
            advice = StorageError(f"{error}; {how_to_write(error)}, or give a writable folder")
            raise typer.Exit(_complain(advice, FAILED)) from error
        except KeyboardInterrupt as error:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from error


def _complain(error: RaysuiteError, code: int) -> int:
    lines = [f"error: {error}"]
    if isinstance(error, SpecError):
        lines = [f"error: {count(len(error.mistakes), 'mistake')}"]
        lines += [f"  {mistake}" for mistake in error.mistakes]
    print("\n".join(lines), file=sys.stderr)
    return code


_SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "context_settings": HELP_OPTIONS,
}
app = typer.Typer(cls=_Verbs, no_args_is_help=True, **_SETTINGS)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"raysuite {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train and benchmark deep networks on a Ray cluster, with figures that can be trusted."""


def load_verb(name: str) -> Any:
    """Import a verb; return its command, or its group of commands, with all options."""
    verb = getattr(import_module(f"raysuite.cli.{_MODULES.get(name, name)}"), name)
    whole = typer.Typer(**_SETTINGS)
    whole.callback()(_root)
    if isinstance(verb, typer.Typer):
        whole.add_typer(verb, name=name)
    else:
        whole.command(name, cls=Command)(verb)
    made: Any = typer.main.get_command(whole)
    return made.commands[name]


def load_all() -> Any:
    """The whole command line with the options of each verb, for the generated documentation."""
    made: Any = typer.main.get_command(app)
    made.commands = {name: load_verb(name) for name in VERBS}
    return made


def command() -> NoReturn:
    """The console entry point: run `main`, then end the process."""
    code: str | int | None = 0
    _make_streams_writable()
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    if "ray" not in sys.modules or not isinstance(code, int | None):
        sys.exit(code)
    end_process(code or 0)


def _make_streams_writable() -> None:
    """Discard the text of a closed stream (`>&-`), and print `?` for characters that a stream's
    encoding lacks, such as those of tables in a locale that is not UTF-8."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream.errors == "strict":
            stream.reconfigure(errors="replace")


def main() -> None:
    """Run the command line with this process's arguments."""
    # A spec can name models in the working folder as module:attribute, but a console script lacks
    # this folder in sys.path. The folder is appended last, so that it hides no installed package.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    app()
