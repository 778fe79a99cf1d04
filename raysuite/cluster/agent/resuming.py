"""Suites that the head goes on with: handed in as jobs, as soon as Ray takes any.

A head that starts goes on with all that nobody is at work on; while it runs, with those whose
driver was killed, or failed, on this host.
"""

from __future__ import annotations

import logging
import math
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from raysuite.cluster.dashboard import RUNNING, Dashboard, NoAnswerError
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.suites import RESUMED, Resume, resume_commands, taken_up

_PATIENCE_S = 180.0
"""From the head's first answer: on a busy node its job server comes up much later."""
_LOOK_EACH_S = 5.0
_SUBMIT_S = 15.0
"""Ray's job server itself waits up to 10 s for its agent on the head."""
log = logging.getLogger("raysuite.cluster")


@dataclass(frozen=True)
class _Waiting:
    resume: Resume
    job: str
    """The id of the job that it becomes."""
    until: float


class Resuming:
    """What is still to be handed in. Each suite is a job of its own, and never two."""

    def __init__(self, folder: ClusterFolder) -> None:
        self._folder = folder
        self._left: dict[Path, _Waiting] = {}
        self._handed_in: dict[Path, str] = {}
        """By results folder: the last job that was handed in for it."""
        self._next = math.inf

    def begin(self) -> None:
        """Look what is to be gone on with, now that Ray answers."""
        self._add(resume_commands(self._folder))

    def look(self, url: str) -> None:
        """Hand in what is left at Ray's dashboard there.

        What it does not take is tried again at the next look; the head has more to watch.
        """
        dashboard = Dashboard(url, self._folder.token(), _SUBMIT_S)
        if time.monotonic() > self._next and self._folder.stop() is None:
            try:
                self._add(self._without_driver(dashboard))
            except NoAnswerError:
                return
        for results, waiting in list(self._left.items()):
            words = shlex.join(waiting.resume.words)
            try:
                self._hand_in(dashboard, waiting)
            except NoAnswerError as error:
                if time.monotonic() <= waiting.until:
                    return
                log.error("%s could not be resumed: %s", words, error)
            else:
                log.info("resumed as job %s: %s", waiting.job, words)
                taken_up(self._folder, results)
                self._handed_in[results] = waiting.job
            del self._left[results]

    def _add(self, resumes: Sequence[Resume]) -> None:
        self._next = time.monotonic() + _LOOK_EACH_S
        until = time.monotonic() + _PATIENCE_S
        for resume in resumes:
            job = resume.job or f"{RESUMED}{secrets.token_hex(6)}"
            self._left.setdefault(resume.results, _Waiting(resume, job, until))

    def _without_driver(self, dashboard: Dashboard) -> list[Resume]:
        """Suites whose driver died, but for those whose next one is about to begin."""
        found = resume_commands(self._folder, head_is_new=False)
        if not found:
            return []
        running = {job.id for job in dashboard.jobs() if job.status in RUNNING}
        return [
            replace(each, job="")  # this head knows the job under that id as one that ended
            for each in found
            if self._handed_in.get(each.results) not in running
        ]

    def _hand_in(self, dashboard: Dashboard, waiting: _Waiting) -> None:
        # an answer that came too late left a job behind that is known by its name
        if all(each.id != waiting.job for each in dashboard.jobs()):
            place, command = str(waiting.resume.folder), shlex.join(waiting.resume.words)
            dashboard.submit(f"cd {shlex.quote(place)} && exec {command}", waiting.job)
