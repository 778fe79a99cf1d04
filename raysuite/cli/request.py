"""The options of `raysuite run` and `raysuite sweep`, with checks of their combinations."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from raysuite.errors import UserError

if TYPE_CHECKING:
    from raysuite.cluster.suites import Verb
    from raysuite.spec import Document

_UPLOADS = "working_dir_files"
"""Name of the folder in which Ray stores the uploads of `ray job submit --working-dir`."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options that both `raysuite run` and `raysuite sweep` have."""

    verb: ClassVar[Verb]
    spec: Path | None = None
    overrides: Sequence[str] = ()
    scale: str | None = None
    address: str | None = None
    root: Path
    resume: bool
    resume_from: Path | None
    retry_failed: bool
    mlflow: bool
    tracking_uri: str | None
    stop_within_s: float
    quiet: bool
    as_json: bool
    timings: bool = False
    document: Document | None = None
    """The spec that `raysuite scale` makes from its options; None if the spec is a file."""

    @property
    def silent(self) -> bool:
        """Whether neither progress nor a report is printed (--quiet or --json)."""
        return self.quiet or self.as_json

    @property
    def again(self) -> bool:
        """Whether earlier results are resumed."""
        return self.resume or self.resume_from is not None

    def check(self) -> None:
        """Raise UserError for options that exclude each other."""
        if self.resume and self.resume_from is not None:
            raise UserError("--resume and --resume-from were both given; give one of them")
        if self.resume_from is not None and self.spec is not None:
            raise UserError(
                "--resume-from resumes the runs as they were planned; leave SPEC and KEY=VALUE out"
            )
        if self.resume_from is None and self.spec is None and self.document is None:
            raise UserError(
                "no SPEC was given; give an experiment's YAML file, or --resume-from RESULTS"
            )
        if self.again and self.overrides:
            self._check_changes()
        if self.retry_failed and not self.again:
            raise UserError("--retry-failed needs --resume or --resume-from")
        folder = (self.resume_from or self.root).absolute()
        if _UPLOADS in folder.parts:
            raise UserError(
                f"results would go to {folder}, a copy of --working-dir that only one node has and "
                "that Ray removes; submit without --working-dir (the job then starts in the folder "
                "in which `raysuite cluster up` was called), or give --results FOLDER, a folder "
                "that all nodes share"
            )

    def _check_changes(self) -> None:
        """Raise UserError for KEY=VALUE arguments that are not allowed when resuming."""
        raise UserError("--resume resumes the runs as they were planned; leave KEY=VALUE out")

    def command(self) -> str:
        """The command line for the provenance: only the arguments that determine the runs."""
        words = ["raysuite", self.verb, *([str(self.spec)] if self.spec else []), *self.overrides]
        words += [] if self.scale is None else ["--scale", self.scale]
        words += ["--resume"] if self.resume else []
        words += ["--resume-from", str(self.resume_from)] if self.resume_from else []
        return shlex.join([*words, *(["--retry-failed"] if self.retry_failed else [])])

    def arguments(self) -> tuple[str, ...]:
        """The options with which a cluster calls `raysuite` again to resume the suite."""
        words = ["--json"] if self.as_json else ["--quiet"] if self.quiet else []
        words += [] if self.mlflow else ["--no-mlflow"]
        uri = self.tracking_uri
        own = uri is not None and uri != os.environ.get("MLFLOW_TRACKING_URI")
        if own and "@" not in str(uri):  # a password must not be on a command line
            words += ["--tracking-uri", str(uri)]
        return (*words, "--stop-within", f"{self.stop_within_s:g}")


@dataclass(frozen=True, kw_only=True)
class RunRequest(Request):
    """The options of `raysuite run`."""

    verb: ClassVar[Verb] = "run"

    budget_s: float | None = None
    """Time limit in seconds from the start of the command."""
    script_options: Sequence[str] = ()
    """The options of `raysuite scale` that determine the runs."""

    def command(self) -> str:
        if self.document is None:
            budget = "" if self.budget_s is None else f" --budget {self.budget_s:g}s"
            return super().command() + budget
        words = [*self.script_options, *(["--resume"] if self.resume else [])]
        words += ["--retry-failed"] if self.retry_failed else []
        script = self.document.data["script"]["command"]
        return shlex.join(["raysuite", "scale", *words, "--", *script])

    def check(self) -> None:
        super().check()
        if self.again and self.budget_s is not None:
            raise UserError("--budget is only for new runs; leave it out when resuming")


@dataclass(frozen=True, kw_only=True)
class SweepRequest(Request):
    """The options of `raysuite sweep`."""

    verb: ClassVar[Verb] = "sweep"

    def _check_changes(self) -> None:
        from raysuite.plan.trials import TRIALS

        if not all(each.startswith(f"{TRIALS}=") for each in self.overrides):
            raise UserError(
                "--resume resumes the runs as they were planned; leave KEY=VALUE out, or give "
                f"{TRIALS}=NUMBER alone for more trials"
            )
