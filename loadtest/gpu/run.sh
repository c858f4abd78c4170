#!/usr/bin/env bash
# Measures Penstock on this machine's GPU, without a network.
#   loadtest/gpu/run.sh WHEELS [OUT]                 does it work, and what is in a step? in seven minutes
#   loadtest/gpu/run.sh --call speed WHEELS [OUT]    how fast does it serve? in five
#   loadtest/gpu/run.sh --call whole WHEELS [OUT]    all, in under forty
#   … --carried FOLDER     with what an earlier call left: compiled kernels and, for --go-on, results
#   … --dry                a trial without a GPU, of tiny sizes
# WHEELS: a folder that loadtest/gpu/wheels.sh has filled; what this Python has already isn't taken
# from there.  OUT: default loadtest/results/gpu.  PYTHON names the interpreter (default python3),
# which has torch, Triton and transformers.  README.md here says more; so does --help.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
exec "${PYTHON:-python3}" "$ROOT/loadtest/gpu/start.py" "$@"
