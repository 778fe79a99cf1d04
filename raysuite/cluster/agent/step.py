"""The process by which slurmd holds this node's part of a step: its task's parent.

Where it dies, as by a memory limit or an administrator's hand, its tasks live on and SLURM knows
nothing of them: it neither ends them with the job nor tells srun.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil


class Step:
    """Watches that process; outside of SLURM there is none, and nothing is ever lost."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        # in an image the agent is a descendant of the task, not the task itself
        task = variables.get("SLURM_TASK_PID", "")
        self._task: psutil.Process | None = None
        if "SLURM_STEP_ID" in variables and task.isdecimal():
            try:
                self._task = psutil.Process(int(task))
                self._holder = self._task.ppid()
            except psutil.Error:  # a container with process ids of its own
                self._task = None

    def is_lost(self) -> bool:
        """Whether the task is no longer held by the process that started it."""
        if self._task is None:
            return False
        try:
            return self._task.ppid() != self._holder
        except psutil.NoSuchProcess:
            return True
