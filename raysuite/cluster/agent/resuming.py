"""Suites that the head goes on with: handed in as jobs, as soon as Ray takes any."""

from __future__ import annotations

import logging
import secrets
import shlex
import time
from collections.abc import Sequence

from raysuite.cluster.dashboard import Dashboard, NoAnswerError
from raysuite.cluster.suites import Resume

_PATIENCE_S = 180.0
"""From the head's first answer: on a busy node its job server comes up much later."""
log = logging.getLogger("raysuite.cluster")


class Resuming:
    """What is still to be handed in. Each suite is a job of its own, and never two."""

    def __init__(self, resumes: Sequence[Resume]) -> None:
        self._left = {f"resumed-{secrets.token_hex(6)}": resume for resume in resumes}
        self._until = time.monotonic() + _PATIENCE_S

    def look(self, dashboard: Dashboard) -> None:
        """Hand in what is left; what Ray does not take is tried again at the next look."""
        late = time.monotonic() > self._until
        for job, resume in list(self._left.items()):
            words = shlex.join(resume.words)
            try:
                # an answer that came too late leaves a job behind that is known by its name
                if all(each.id != job for each in dashboard.jobs()):
                    entrypoint = f"cd {shlex.quote(str(resume.folder))} && exec {words}"
                    dashboard.submit(entrypoint, job)
            except NoAnswerError as error:
                if not late:
                    continue
                log.error("%s could not be resumed: %s", words, error)
            else:
                log.info("resumed as job %s: %s", job, words)
            del self._left[job]
