#!/usr/bin/env bash
# Measures Penstock on this machine's GPU, in under forty minutes and without a network.
#   loadtest/gpu/run.sh WHEELS [OUT]        (default: loadtest/results/gpu)
#   loadtest/gpu/run.sh --seconds 570 --go-on WHEELS OUT   in pieces: again until all parts are done
#   loadtest/gpu/run.sh --dry [WHEELS [OUT]]   a trial of the whole without a GPU, of tiny sizes
# WHEELS: a folder that loadtest/gpu/wheels.sh has filled; what this Python has already isn't taken
# from there.  PYTHON names the interpreter (default python3), which has torch, Triton and
# transformers.  Other options: loadtest/gpu/run.sh --help.
set -euo pipefail
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
exec "${PYTHON:-python3}" "$ROOT/loadtest/gpu/start.py" "$@"
