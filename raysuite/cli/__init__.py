"""`raysuite`: one verb a file.

Exit codes: 0 success; 1 something failed while it ran; 2 bad input; 75 stopped, can be resumed; 130
interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from raysuite import __version__
from raysuite.cli.bench import bench
from raysuite.cli.cluster import cluster
from raysuite.cli.data import data
from raysuite.cli.doctor import doctor
from raysuite.cli.evaluate import evaluate
from raysuite.cli.explain import explain
from raysuite.cli.image import image
from raysuite.cli.job import job
from raysuite.cli.models import models
from raysuite.cli.plan import plan
from raysuite.cli.predict import calibrate, predict
from raysuite.cli.recommend import recommend
from raysuite.cli.register import register, sync
from raysuite.cli.report import history, report
from raysuite.cli.run import run, sweep
from raysuite.cli.scale import scale
from raysuite.cli.schema import schema
from raysuite.cli.simulate import simulate
from raysuite.cli.verify import verify
from raysuite.cli.watch import watch
from raysuite.ending import end_process
from raysuite.errors import (
    RaysuiteError,
    SpecError,
    StorageError,
    UserError,
    how_to_write,
    is_full,
)

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


class _Verbs(TyperGroup):
    """Lists verbs in the order of use, and turns raysuite's errors into a message and a code."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

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
        count = len(error.mistakes)
        lines = ["error: 1 mistake" if count == 1 else f"error: {count} mistakes"]
        lines += [f"  {mistake}" for mistake in error.mistakes]
    print("\n".join(lines), file=sys.stderr)
    return code


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


_VERBS = (
    *(
        plan,
        run,
        sweep,
        scale,
        watch,
        report,
        history,
        calibrate,
        predict,
        simulate,
        recommend,
        explain,
    ),
    *(models, doctor, verify, sync, register, evaluate, schema),
)
for _verb in _VERBS:
    app.command(_verb.__name__)(_verb)
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")
app.add_typer(cluster, name="cluster")
app.add_typer(job, name="job")
app.add_typer(image, name="image")


def command() -> NoReturn:
    """The console entry: run `main`, then end the process."""
    code: str | int | None = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    if "ray" not in sys.modules or not isinstance(code, int | None):
        sys.exit(code)
    end_process(code or 0)


def main() -> None:
    """What `raysuite WORDS` does."""
    # `python -m` has the working folder on its path, a console script has not: a spec names the
    # user's own models there as module:attribute. Last, so that it hides no installed package.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    app()
