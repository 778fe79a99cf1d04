#!/usr/bin/env bash
# torch's PowerSGD hook on gloo: with more than one bucket, DDP hangs or a rank is aborted.
#
# Usually expected: a communication hook that torch ships works with every number of buckets, on
# gloo as on NCCL.
# Seen on 2026-11-28 with torch 2.15.0 on a CPU: the hook's callbacks start an all_reduce and wait
# for it. gloo runs callbacks and collectives in the same two threads of a rank. With two buckets
# under way both threads wait for ever (both in `unpack_uncompressed_tensors_and_allreduce_ps`), or
# the ranks start the collectives of two buckets in different orders, and gloo ends a rank:
# "op.preamble.length <= op.nbytes. 48 vs 8. Received data size doesn't match expected size".
# Waiting for each bucket's future in the hook, before the next bucket, avoids both.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  torch==2.15.0 numpy==2.4.6

cat >"$work/check.py" <<'PY'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

RANKS, STEPS = 2, 300


def one_after_the_other(state, bucket):
    future = powersgd.powerSGD_hook(state, bucket)
    future.wait()
    return future


def work(rank, store, hook):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    layers = [torch.nn.Linear(48 - n, 47 - n) for n in range(24)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.002)
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, hook)
    for _ in range(STEPS):
        model(torch.randn(4, 48)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    hook = {"torch": powersgd.powerSGD_hook, "waits": one_after_the_other}[sys.argv[2]]
    mp.spawn(work, (sys.argv[1], hook), RANKS)
PY
timeout 300 "$work/venv/bin/python" "$work/check.py" "$work/waits" waits
echo "waiting for each bucket: all steps made"
if timeout 120 "$work/venv/bin/python" "$work/check.py" "$work/torch" torch; then
  echo "the hook alone: all steps made, which is not as stated"
  exit 1
fi
echo "the hook alone: hung or aborted, as stated"
