"""`python -P -m raysuite.cluster.agent FOLDER`: run one node of the cluster until a signal ends it.

Exit codes: 0: ended on request, or after the head; 1: Ray or the agent failed on this node; 2: the
site or the folder is invalid.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import tempfile
from pathlib import Path

from raysuite.cluster import private
from raysuite.cluster.agent.head import HeadNode
from raysuite.cluster.agent.leftovers import clear_away
from raysuite.cluster.agent.node import Signals, ThisNode, WorkerNode
from raysuite.cluster.agent.place import find_place
from raysuite.cluster.agent.ray_process import check_temp
from raysuite.cluster.folder import ClusterFolder
from raysuite.cluster.state_files import NONCE
from raysuite.cluster.variables import with_site
from raysuite.errors import RaysuiteError, UserError
from raysuite.spec.site_values import expand

FAILED, BAD_INPUT = 1, 2
TEMP_PREFIX = "rs-"
log = logging.getLogger("raysuite.cluster")


def main(arguments: list[str]) -> int:
    os.umask(0o077)  # otherwise Ray's folders would be open to all users
    # a core dump would write the token into the folder in which `cluster up` was called
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    folder = ClusterFolder(Path(arguments[0]))
    signals = Signals(folder.end)
    try:
        cluster = folder.cluster()
        # the site's variables also override values that an image or bash has set
        os.environ.update(with_site(os.environ, cluster.site.environment))
        place = find_place(cluster.site)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    _log_into(folder.log_of(place.host))
    log.info("agent %d on %s, node %d", signals.pid, place.host, place.index)
    if place.is_head:
        folder.ending.unlink(missing_ok=True)
        signals.mark = folder.ending
    node: ThisNode | None = None
    temp: Path | None = None
    try:
        for line in clear_away(folder, cluster, place, log.warning):
            log.warning(line)
        temp = _temp(Path(expand(cluster.site.scratch, os.environ)))
        node = ThisNode(folder, cluster, place, temp, signals)
        check_temp(temp / "r")
        role = HeadNode(node) if place.is_head else WorkerNode(node)
        try:
            role.run()
        finally:
            role.end()
        node.say("ended")
        return 0
    except RaysuiteError as error:
        log.error("%s", error)
        print(f"raysuite: {place.host}: {error}", file=sys.stderr, flush=True)
        if node:
            node.say("failed", str(error))
        return BAD_INPUT if isinstance(error, UserError) else FAILED
    except Exception as error:
        log.exception("the agent failed")
        if node:
            node.say("failed", f"{type(error).__name__}: {error}")
        return FAILED
    finally:
        if temp:
            private.remove(temp, last=NONCE)


def _temp(scratch: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=TEMP_PREFIX, dir=scratch))  # mode 0700
    except OSError as error:
        raise UserError(
            f"no folder can be made in the site's scratch {scratch}: {error}; set `scratch` to "
            "another folder, on the node's own disk"
        ) from error


def _log_into(path: Path) -> None:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
