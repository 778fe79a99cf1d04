"""Run many tasks in several processes, which end when the calling process ends."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from raysuite.errors import RunError

Result = TypeVar("Result")
Count = Callable[[int], None]
"""Called with the amount of newly finished work, in any unit."""

_TELL_EVERY_S = 0.1


def each(
    tasks: Sequence[Callable[[Count], Result]], workers: int, count: Count
) -> Iterator[Result]:
    """Call all tasks, as `task(count)`, in up to `workers` processes; yield results as they come.

    With one worker or one task, this process does the work. Tasks must be picklable. An exception
    in a task is raised here and ends all processes.

    Raises RunError if a process was killed.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        for task in tasks:
            yield task(count)
        return
    # not forked: threads of this process may hold locks that a child could never acquire
    context = multiprocessing.get_context("forkserver")
    pipes: dict[Connection, Any] = {}
    try:
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            pipes[ours] = process
        yield from _hand_out(pipes, tasks, count)
    finally:
        for pipe, process in pipes.items():
            process.kill()
            process.join()
            pipe.close()


def journaled(
    tasks: Sequence[Callable[[Count], Any]],
    workers: int,
    count: Count,
    journal: Path,
    keeps: Callable[[Any], bool] = lambda result: True,
) -> Iterator[Any]:
    """Like `each`, for tasks whose results are dataclasses. A result for which `keeps` returns True
    is written to `journal` before it is yielded, so that a killed job can be resumed
    (`files.continued_lines` reads the journal)."""
    with journal.open("a", encoding="utf-8") as lines:
        for result in each(tasks, workers, count):
            if keeps(result):
                lines.write(json.dumps(asdict(result)) + "\n")
                lines.flush()
            yield result


def _hand_out(pipes: dict[Connection, Any], tasks: Sequence[Any], count: Count) -> Iterator[Any]:
    pending = iter(tasks)
    busy: set[Connection] = set()

    def give(pipe: Connection) -> None:
        busy.discard(pipe)
        for task in pending:
            busy.add(pipe)
            pipe.send(task)
            break

    try:
        for pipe in pipes:
            give(pipe)
        while busy:
            ready = wait(list(busy))
            for pipe in [one for one in pipes if one in ready]:
                kind, value = pipe.recv()
                if kind == "count":
                    count(value)
                elif kind == "done":
                    give(pipe)
                    yield value
                else:
                    raise value
    except (EOFError, ConnectionError) as error:
        raise RunError(
            "a process was killed while it worked (by a user, or because memory ran out); run the "
            "same command again, with fewer --workers if memory was short"
        ) from error


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and ends this process
    done, told = 0, time.monotonic()

    def count(more: int) -> None:
        nonlocal done, told
        done += more
        if time.monotonic() - told > _TELL_EVERY_S:
            pipe.send(("count", done))
            done, told = 0, time.monotonic()

    try:
        while True:
            result = pipe.recv()(count)
            pipe.send(("count", done))
            done = 0
            pipe.send(("done", result))
    except (EOFError, ConnectionError):
        return  # the calling process has ended
    except Exception as error:
        pipe.send(("failed", error))
