"""Suites that the head goes on with: handed in as jobs, as soon as Ray takes any."""

from __future__ import annotations

import logging
import secrets
import shlex
import time

from raysuite.cluster.dashboard import Dashboard, NoAnswerError
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.suites import Resume, resume_commands, taken_up

_PATIENCE_S = 180.0
"""From the head's first answer: on a busy node its job server comes up much later."""
_SUBMIT_S = 15.0
"""Ray's job server itself waits up to 10 s for its agent on the head."""
log = logging.getLogger("raysuite.cluster")


class Resuming:
    """What is still to be handed in. Each suite is a job of its own, and never two."""

    def __init__(self, folder: ClusterFolder) -> None:
        self._folder = folder
        self._left: dict[str, Resume] = {}
        self._until = 0.0

    def begin(self) -> None:
        """Look what is to be gone on with, now that Ray answers."""
        resumes = resume_commands(self._folder)
        self._left = {f"resumed-{secrets.token_hex(6)}": resume for resume in resumes}
        self._until = time.monotonic() + _PATIENCE_S

    def look(self, url: str) -> None:
        """Hand in what is left at Ray's dashboard there.

        What it does not take is tried again at the next look; the head has more to watch.
        """
        late = time.monotonic() > self._until
        for job, resume in list(self._left.items()):
            words = shlex.join(resume.words)
            try:
                self._hand_in(Dashboard(url, self._folder.token(), _SUBMIT_S), job, resume)
            except NoAnswerError as error:
                if not late:
                    return
                log.error("%s could not be resumed: %s", words, error)
            else:
                log.info("resumed as job %s: %s", job, words)
                taken_up(self._folder, resume.results)
            del self._left[job]

    def _hand_in(self, dashboard: Dashboard, job: str, resume: Resume) -> None:
        # an answer that came too late left a job behind that is known by its name
        if all(each.id != job for each in dashboard.jobs()):
            line = f"cd {shlex.quote(str(resume.folder))} && exec {shlex.join(resume.words)}"
            dashboard.submit(line, job)
