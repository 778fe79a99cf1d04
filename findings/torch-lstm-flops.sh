#!/usr/bin/env bash
# torch: FlopCounterMode counts no operation of an LSTM on a CPU, in evaluation and in training.
#
# Usually expected: the counter sees every matrix multiplication. It counts those of a GRU or of an
# Elman RNN of the same size, and it documents no layer that it leaves out.
# Seen on 2026-11-30 with torch 2.13.0 (x86-64, oneDNN): an LSTM runs as the single operation
# `mkldnn_rnn_layer`, for which the counter has no formula, so the total of a model whose only
# layer is an LSTM is 0, and that of a larger model is too small without a warning. With
# `torch.backends.mkldnn.flags(enabled=False)` the same layer is counted in full.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  torch==2.13.0 numpy==2.4.6

"$work/venv/bin/python" - <<'PY'
import torch
from torch.utils.flop_counter import FlopCounterMode

print("torch", torch.__version__, "oneDNN", torch.backends.mkldnn.is_available())
TIME, BATCH, INPUT, HIDDEN = 5, 3, 8, 16


def counted(kind, gates, training, onednn=True):
    """Operations of a forward pass, as counted and by hand: 2 for each weight, step and sample."""
    layer = getattr(torch.nn, kind)(INPUT, HIDDEN).train(training)
    x = torch.randn(TIME, BATCH, INPUT)
    with torch.backends.mkldnn.flags(enabled=onednn), FlopCounterMode(display=False) as counter:
        layer(x)
    by_hand = 2 * TIME * BATCH * gates * HIDDEN * (INPUT + HIDDEN)
    return counter.get_total_flops(), by_hand


seen = {
    "RNN": counted("RNN", 1, True),
    "GRU": counted("GRU", 3, True),
    "LSTM, training": counted("LSTM", 4, True),
    "LSTM, evaluation": counted("LSTM", 4, False),
    "LSTM without oneDNN": counted("LSTM", 4, True, onednn=False),
}
for name, (found, by_hand) in seen.items():
    print(f"{name}: counted {found:,}, by hand {by_hand:,}")
for name in ("RNN", "GRU", "LSTM without oneDNN"):
    assert seen[name][0] == seen[name][1], name
for name in ("LSTM, training", "LSTM, evaluation"):
    assert seen[name][0] == 0, name
print("as stated")
PY
