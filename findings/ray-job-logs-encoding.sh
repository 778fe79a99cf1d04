#!/usr/bin/env bash
# Ray: the log of a job that prints one byte which is not UTF-8 cannot be read, and its tail stops there.
#
# Usually expected: `ray job logs` and `JobSubmissionClient.get_job_logs` show the whole output, with
# a replacement for bytes of another encoding, as `docker logs` or a terminal does; or they at least
# show all other lines.
# Seen on 2026-11-30 with Ray 2.60.0: a job that prints a line in Latin-1 succeeds, but get_job_logs
# raises RuntimeError (status code 500, UnicodeDecodeError), and tail_job_logs ends without an error
# before that line: the later lines are never shown. The file job-driver-ID.log holds them all.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  "ray[default]==2.60.0"
export RAY_USAGE_STATS_ENABLED=0 RAY_TMPDIR="$work"

cat >"$work/job.py" <<'PY'
import sys

sys.stdout.buffer.write("first\ncafé\nlast\n".encode("latin-1"))
PY

cat >"$work/logs.py" <<'PY'
import asyncio
import glob
import sys
import time

import ray
from ray.job_submission import JobStatus, JobSubmissionClient

work = sys.argv[1]
context = ray.init(num_cpus=1, include_dashboard=True, log_to_driver=False, logging_level="ERROR")
client = JobSubmissionClient(f"http://{context.dashboard_url}")
job = client.submit_job(entrypoint=f"{sys.executable} {work}/job.py")
while not (status := client.get_job_status(job)).is_terminal():
    time.sleep(0.2)
assert status == JobStatus.SUCCEEDED, status
try:
    found = client.get_job_logs(job)
except RuntimeError as error:
    found = f"RuntimeError naming UnicodeDecodeError: {'UnicodeDecodeError' in str(error)}"


async def tail():
    return "".join([lines async for lines in client.tail_job_logs(job)])


tailed = asyncio.run(tail())
file, *_ = glob.glob(f"{work}/**/job-driver-{job}.log", recursive=True)
whole = open(file, "rb").read()
print("Ray", ray.__version__, status)
print("get_job_logs:", found)
print("tail_job_logs has last line:", "last" in tailed)
print("file has last line:", b"last" in whole)
assert found == "RuntimeError naming UnicodeDecodeError: True"
assert "last" not in tailed and b"last" in whole
print("as stated")
ray.shutdown()
PY
"$work/venv/bin/python" "$work/logs.py" "$work" 2>"$work/errors" || { tail -5 "$work/errors"; exit 1; }
