#!/usr/bin/env bash
# DeepSpeed: a ZeRO-3 engine replaces `torch.nn.functional.linear` for all networks of the process,
# and `destroy()` does not put it back.
#
# Usually expected: an engine changes the network that it was given; after `engine.destroy()` a
# plain network in the same process, such as the next trial of a sweep, trains as before.
# Seen on 2026-11-29 with DeepSpeed 0.19.8 and torch 2.13.0 and 2.15.0 on a CPU: afterwards every
# `nn.Linear` runs DeepSpeed's function. Under bf16 autocast with inputs of three dimensions its
# output and gradients have other bits (the bias is added in a second operation, which rounds
# again), and forward-mode differentiation (`torch.func.jvp`) raises NotImplementedError.
# Results in fp32 are equal. Assigning the saved function after `destroy()` brings all of it back.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  torch==2.13.0 numpy==2.4.6 setuptools==80.9.0 wheel==0.45.1
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  --no-build-isolation deepspeed==0.19.8

cat > "$work/linear.py" <<'PY'
import deepspeed
import torch
from torch import nn

print("DeepSpeed", deepspeed.__version__, "torch", torch.__version__)
linear = nn.functional.linear


def gradients(bf16):
    """Return the gradients of a plain network of two layers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    inputs = torch.randn(5, 9, 64)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(inputs).float().square().mean()
    loss.backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()])


def forward_mode():
    model = nn.Linear(3, 2)
    try:
        return list(torch.func.jvp(model, (torch.ones(3),), (torch.ones(3),))[1].shape)
    except NotImplementedError:
        return "NotImplementedError"


def seen():
    return gradients(bf16=False), gradients(bf16=True), forward_mode()


deepspeed.init_distributed("gloo")
before = seen()
model = nn.Linear(2, 1)
engine, *_ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={
        "train_batch_size": 4,
        "zero_optimization": {"stage": 3},
        "zero_allow_untested_optimizer": True,
    },
)
engine.destroy()
after = seen()
changed = float((before[1] - after[1]).abs().max())
print("replaced:", nn.functional.linear is not linear)
print("fp32 gradients equal:", torch.equal(before[0], after[0]))
print(f"largest change of a bf16 gradient: {changed:.1e} of {float(before[1].abs().max()):.1e}")
print("jvp before and after:", before[2], after[2])
assert nn.functional.linear is not linear and torch.equal(before[0], after[0]) and changed > 0
assert (before[2], after[2]) == ([2], "NotImplementedError")
nn.functional.linear = linear
again = seen()
assert torch.equal(before[1], again[1]) and before[2] == again[2]
print("as stated")
PY
export DS_ACCELERATOR=cpu RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0
"$work/venv/bin/python" -W ignore "$work/linear.py" 2> "$work/log" | grep -v '\[INFO\]\|\[WARNING\]' \
  || { cat "$work/log" >&2; exit 1; }
