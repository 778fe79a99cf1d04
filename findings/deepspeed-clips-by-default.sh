#!/usr/bin/env bash
# DeepSpeed: a configuration without `gradient_clipping` clips the gradient to norm 1.
#
# Usually expected: clipping is off unless it is asked for, as in torch and Lightning; a
# configuration that names the batch size alone trains as the given torch optimizer does.
# Seen on 2026-11-29 with DeepSpeed 0.19.8 and torch 2.13.0 and 2.15.0 on a CPU, ZeRO stages 0 to 3:
# with gradients of norm 8.5 the first update of SGD is that of a gradient of norm 1; only
# "gradient_clipping": 0.0 gives torch's update.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  torch==2.13.0 numpy==2.4.6 setuptools==80.9.0 wheel==0.45.1
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  --no-build-isolation deepspeed==0.19.8

cat > "$work/clips.py" <<'PY'
import deepspeed
import torch

print("DeepSpeed", deepspeed.__version__, "torch", torch.__version__)
START, INPUTS = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0]] * 4)


def network():
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(START)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def first_update(**config):
    """Return the L2 norm of the first update, divided by the learning rate."""
    model, optimizer = network()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=optimizer,
        config={"train_batch_size": 4, "zero_allow_untested_optimizer": True, **config},
    )
    engine.backward(engine(INPUTS).square().mean())
    engine.step()
    output = engine(INPUTS)[0, 0].item()
    engine.destroy()
    # both weights have the same gradient g, so that the output falls by 2 * 0.1 * g
    return (3 - output) / 0.2 * 2**0.5


model, optimizer = network()
model(INPUTS).square().mean().backward()
optimizer.step()
plain = (START - model.weight.detach()).norm().item() / 0.1
print(f"torch: {plain:.3f}")
assert abs(plain - 6 * 2**0.5) < 1e-3

deepspeed.init_distributed("gloo")
for stage in range(4):
    zero = {"zero_optimization": {"stage": stage}}
    silent, off = first_update(**zero), first_update(**zero, gradient_clipping=0.0)
    print(f"stage {stage}: {silent:.3f} by default, {off:.3f} with gradient_clipping 0")
    assert abs(silent - 1) < 1e-3 and abs(off - plain) < 1e-3
print("as stated")
PY
export DS_ACCELERATOR=cpu RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0
"$work/venv/bin/python" -W ignore "$work/clips.py" 2> "$work/log" | grep -v '\[INFO\]\|\[WARNING\]' \
  || { cat "$work/log" >&2; exit 1; }
