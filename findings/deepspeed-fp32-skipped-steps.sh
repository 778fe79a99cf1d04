#!/usr/bin/env bash
# DeepSpeed: ZeRO stages 1 to 3 skip steps with NaN gradients in fp32 too, without a message.
#
# Usually expected: steps are skipped under a dynamic loss scale, that is in fp16. In fp32 a NaN
# gradient makes the weights NaN, as with torch's own optimizers, so that a diverged run shows.
# Seen on 2026-11-29 with DeepSpeed 0.19.8 and torch 2.13.0 and 2.15.0 on a CPU: with stages 1, 2
# and 3 the step after a batch with a NaN leaves the weights as they were and training goes on;
# only `engine.skipped_steps` shows it, and `engine.global_steps` counts that step. Stage 0 behaves
# as expected. A comparison of stages, or with DistributedDataParallel, then compares a run that
# ended with one that hid the same fault. "compute_grad_norm": false in the section of ZeRO turns
# it off for stages 1 and 2 (without clipping).
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  torch==2.13.0 numpy==2.4.6 setuptools==80.9.0 wheel==0.45.1
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  --no-build-isolation deepspeed==0.19.8

cat > "$work/skips.py" <<'PY'
import math

import deepspeed
import torch

print("DeepSpeed", deepspeed.__version__, "torch", torch.__version__)
BATCHES = [torch.ones(4, 2), torch.full((4, 2), math.nan), torch.ones(4, 2)]


def trained(**zero):
    """Return the three losses, and the steps that DeepSpeed skipped and counted."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        config={
            "train_batch_size": 4,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.0,
        },
    )
    losses = []
    for batch in BATCHES:
        loss = engine(batch).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    counts = engine.skipped_steps, engine.global_steps
    engine.destroy()
    return losses, counts


deepspeed.init_distributed("gloo")
for stage in range(4):
    losses, (skipped, counted) = trained(stage=stage)
    print(f"stage {stage}: losses {losses}, {skipped} skipped of {counted} steps")
    assert math.isnan(losses[1]) and counted == 3
    assert skipped == (stage > 0) and math.isnan(losses[2]) == (stage == 0)
for stage in (1, 2):
    losses, (skipped, _) = trained(stage=stage, compute_grad_norm=False)
    print(f"stage {stage} without the norm: losses {losses}, {skipped} skipped")
    assert skipped == 0 and math.isnan(losses[2])
print("as stated")
PY
export DS_ACCELERATOR=cpu RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0
"$work/venv/bin/python" -W ignore "$work/skips.py" 2> "$work/log" | grep -v '\[INFO\]\|\[WARNING\]' \
  || { cat "$work/log" >&2; exit 1; }
