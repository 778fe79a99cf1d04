#!/usr/bin/env bash
# torch.distributed on gloo: `all_reduce` of a view changes other elements than the view's, and a
# sum of bf16 values depends on the element's position.
#
# Usually expected: a collective on a strided view (`tensor[:, :2]`) works on the view's elements,
# as every other operator does, or raises as NCCL does; and elements with equal inputs have equal
# sums.
# Seen on 2026-11-27 with torch 2.13.0 and 2.15.0 on a CPU: `all_reduce` of `tensor[:, :2]` of a
# 4 x 4 tensor sums the first 8 elements of the memory instead: the rows 0 and 1 as a whole, also
# outside the view, and nothing of the rows 2 and 3. There is no error.
# Four ranks that hold 256, 1, 1 and 1 in bf16 get 256 at some positions of the tensor and 260 at
# others (exact: 259), because each part of the tensor is summed in a different order of ranks.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  torch==2.13.0 numpy==2.4.6

cat >"$work/check.py" <<'PY'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 4


def work(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    tensor = torch.ones(4, 4)
    view = tensor[:, :2]
    dist.all_reduce(view)
    summed = torch.full((4, 4), 1.0)
    summed[:2] = RANKS
    value = torch.full((64,), 256.0 if rank == 0 else 1.0, dtype=torch.bfloat16)
    dist.all_reduce(value)
    if rank == 0:
        print("view contiguous:", view.is_contiguous())
        print(tensor)
        print("bf16 sums of 256 + 1 + 1 + 1:", value.float().tolist())
    assert torch.equal(tensor, summed)
    assert set(value.tolist()) == {256.0, 260.0}
    dist.destroy_process_group()


if __name__ == "__main__":
    print("torch", torch.__version__)
    mp.spawn(work, (sys.argv[1],), RANKS)
    print("as stated")
PY
"$work/venv/bin/python" "$work/check.py" "$work/store"
