#!/usr/bin/env bash
# Ray Tune: the quantized ranges miss their ends, or draw them half as often.
#
# Usually expected: `tune.qrandint(1, 10, 3)` counts from 1 in steps of 3 (1, 4, 7, 10), as Python's
# `range(1, 11, 3)` and Optuna's `suggest_int(1, 10, step=3)` do, or at least can return its ends;
# `tune.quniform(0, 1, 0.25)` draws its five values equally often.
# Seen on 2026-11-27 with Ray 2.60.0 and Optuna 5.0.0: `qrandint(1, 10, 3)` gives 3, 6 and 9 only,
# because it counts multiples of the step. `qrandint(1, 4, 1)` never gives 4, although the upper
# end counts with every other step (`qrandint(0, 10, 5)` gives 10). `quniform` rounds a uniform
# number, so that each end has half the probability of the values between.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv --without-pip "$work/venv"
python3 -m pip --python "$work/venv/bin/python" install -q --no-compile --disable-pip-version-check \
  "ray[tune]==2.60.0" optuna==5.0.0

"$work/venv/bin/python" - <<'PY'
import collections

import optuna
import ray
from ray import tune

print("Ray", ray.__version__, "Optuna", optuna.__version__)
DRAWS = 20000


def shares(draw):
    counts = collections.Counter(round(float(draw()), 6) for _ in range(DRAWS))
    return {value: round(count / DRAWS, 3) for value, count in sorted(counts.items())}


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
stepped = {study.ask().suggest_int("x", 1, 10, step=3) for _ in range(200)}
print("optuna suggest_int(1, 10, step=3):", sorted(stepped))
seen = {
    "qrandint(1, 10, 3)": shares(tune.qrandint(1, 10, 3).sample),
    "qrandint(0, 10, 5)": shares(tune.qrandint(0, 10, 5).sample),
    "qrandint(1, 4, 1)": shares(tune.qrandint(1, 4, 1).sample),
    "quniform(0, 1, 0.25)": shares(tune.quniform(0, 1, 0.25).sample),
}
for name, value in seen.items():
    print(f"{name}: {value}")

assert stepped == {1, 4, 7, 10}
assert set(seen["qrandint(1, 10, 3)"]) == {3, 6, 9}
assert set(seen["qrandint(0, 10, 5)"]) == {0, 5, 10}
assert set(seen["qrandint(1, 4, 1)"]) == {1, 2, 3}
uniform = seen["quniform(0, 1, 0.25)"]
assert set(uniform) == {0, 0.25, 0.5, 0.75, 1}
assert all(abs(uniform[end] - 0.125) < 0.02 for end in (0, 1))
assert all(abs(uniform[inner] - 0.25) < 0.02 for inner in (0.25, 0.5, 0.75))
print("as stated")
PY
