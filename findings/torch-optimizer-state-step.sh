#!/usr/bin/env bash
# torch: reading the state of a new optimizer with `get_optimizer_state_dict` changes training.
#
# Usually expected: a getter does not change what it reads; a checkpoint taken before the first
# step and training without one give equal weights.
# Seen on 2026-11-27 with torch 2.13.0 and 2.15.0: the getter makes the missing state of AdamW by
# one step with zero gradients and rate 0. The weights stay, but `step` stays at 1, so the first
# real step corrects its bias as a second one (1 - beta^2 instead of 1 - beta): with default betas
# the first update is 0.1 / sqrt(0.001) * sqrt(0.001999) / 0.19 = 0.744 of the usual one.
# `Optimizer.state_dict` leaves the optimizer as it is.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  torch==2.13.0 numpy==2.4.6

"$work/venv/bin/python" - <<'PY'
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

print("torch", torch.__version__)


def first_update(read):
    """Return the first update of a weight, and AdamW's count of steps after it."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0)
    before = model.weight.detach().clone()
    read(model, optimizer)
    assert torch.equal(before, model.weight)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    step = int(optimizer.state[model.weight]["step"])
    return float((before - model.weight.detach())[0, 0]), step


seen = {
    "state_dict": first_update(lambda model, optimizer: optimizer.state_dict()),
    "get_optimizer_state_dict": first_update(get_optimizer_state_dict),
}
for name, (update, step) in seen.items():
    print(f"{name}: first update {update:.4f}, step {step}")

assert seen["state_dict"][1] == 1 and abs(seen["state_dict"][0] - 0.1) < 1e-5
assert seen["get_optimizer_state_dict"][1] == 2
assert abs(seen["get_optimizer_state_dict"][0] - 0.0744) < 1e-4
print("as stated")
PY
