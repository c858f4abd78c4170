#!/usr/bin/env bash
# Downloads the wheels that run.sh needs, for Python 3.12 on x86-64 Linux.
#   loadtest/gpu/wheels.sh FOLDER
# The list follows from pyproject.toml (see wheels.py); constraints.txt says which versions.
# PYTHON names an interpreter with pip, of version 3.11 or later (default python3).
set -euo pipefail
[ $# = 1 ] || { sed -n '2,5s/^# //p' "$0"; exit 2; }
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=${PYTHON:-python3}
mkdir -p "$1"
platforms=()
# pip takes no wheel of another glibc than those named, older ones neither.
for glibc in $(seq 5 35); do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
for name in manylinux2014 manylinux2010 manylinux1; do platforms+=(--platform "${name}_x86_64"); done
mapfile -t wanted < <("$PYTHON" "$ROOT/loadtest/gpu/wheels.py")
[ ${#wanted[@]} -gt 0 ]
"$PYTHON" -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: \
    --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none "${platforms[@]}" \
    --constraint "$ROOT/constraints.txt" --dest "$1" "${wanted[@]}"
du -sh "$1"
