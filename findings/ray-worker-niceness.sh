#!/usr/bin/env bash
# Ray: workers run at niceness 15, so a training beside any other busy process gets 3 % of a processor.
#
# Usually expected: a process that Ray starts for a task or an actor has the priority of the program
# that started Ray, as a process of torchrun or mpirun has.
# Seen on 2026-11-28 with Ray 2.60.0 on Linux: each worker has niceness 15 (the driver 0). Pinned to
# the processor of one other busy process of the same session, an actor gets about 1/29 of what it
# gets with RAY_worker_niceness=0 in Ray's environment, then one half. The weights are the kernel's:
# 36 for niceness 15, 1024 for 0. The variable is not in Ray's documentation of settings.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  "ray[default]==2.60.0"

cat >"$work/share.py" <<'PY'
import os
import subprocess
import sys
import time

import ray

PROCESSOR = min(os.sched_getaffinity(0))
SECONDS = 5.0


@ray.remote(num_cpus=1)
class Actor:
    def nice(self):
        return os.nice(0)

    def share(self):
        """Seconds of processor time in each second, on PROCESSOR alone."""
        os.sched_setaffinity(0, {PROCESSOR})
        began, used = time.monotonic(), time.process_time()
        while time.monotonic() - began < SECONDS:
            pass
        return (time.process_time() - used) / (time.monotonic() - began)


ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
actor = Actor.remote()
nice = ray.get(actor.nice.remote()) - os.nice(0)
busy = f"import os; os.sched_setaffinity(0, {{{PROCESSOR}}})\nwhile True: pass"
other = subprocess.Popen([sys.executable, "-c", busy])
try:
    share = ray.get(actor.share.remote())
finally:
    other.kill()
print(ray.__version__, nice, round(share, 3))
PY

for niceness in "" 0; do
  env ${niceness:+RAY_worker_niceness=$niceness} "$work/venv/bin/python" "$work/share.py" \
    2>/dev/null | tail -1 >"$work/seen"
  read -r version nice share <"$work/seen"
  echo "Ray $version, RAY_worker_niceness=${niceness:-unset}: niceness $nice, share of a processor $share"
  if [ -z "$niceness" ]; then
    [ "$nice" = 15 ] && unset_share=$share
  else
    [ "$nice" = 0 ]
    python3 -c "import sys; a, b = map(float, sys.argv[1:]); sys.exit(not a < b / 4)" "$unset_share" "$share"
  fi
done
echo "as described"
