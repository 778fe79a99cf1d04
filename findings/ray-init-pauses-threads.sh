#!/usr/bin/env bash
# Ray: ray.init() stops all other threads of the program while the first workers start.
#
# Usually expected: a call that waits for other processes releases Python's global interpreter lock,
# so that another thread can import modules or load data meanwhile.
# Seen on 2026-11-29 with Ray 2.60.0 on Linux: ray.init(address="local") starts one worker for each
# CPU and waits for their registration without releasing the lock. Here the start of each Python
# process of Ray takes 2 s longer, as on a busy file system: a thread that counts time stands still
# for more than 2 s. With RAY_prestart_worker_first_driver=0 in the environment, ray.init() starts no
# workers, and the thread never stands still for 1 s.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  "ray[default]==2.60.0"

cat >"$work/pause.py" <<'PY'
import threading
import time

import ray

longest, ended = 0.0, threading.Event()


def count():
    global longest
    last = time.monotonic()
    while not ended.wait(0.01):
        now = time.monotonic()
        longest, last = max(longest, now - last), now


thread = threading.Thread(target=count)
thread.start()
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
ended.set()
thread.join()
print(ray.__version__, round(longest, 2))
PY
mkdir "$work/slow"
# imported at the start of each Python process that has this folder in its path
cat >"$work/slow/sitecustomize.py" <<'PY'
import sys
import time

if any("default_worker" in word for word in sys.orig_argv):
    time.sleep(2)
PY

for setting in 1 0; do
  env RAY_prestart_worker_first_driver=$setting PYTHONPATH="$work/slow" \
    "$work/venv/bin/python" "$work/pause.py" 2>/dev/null | tail -1 >"$work/seen"
  read -r version longest <"$work/seen"
  echo "Ray $version, RAY_prestart_worker_first_driver=$setting: another thread stands still for up to $longest s"
  python3 -c "import sys; sys.exit(not ($longest > 2 if $setting else $longest < 1))"
done
echo "as described"
