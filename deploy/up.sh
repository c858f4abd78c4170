#!/bin/sh
# Builds the images, starts everything with compose, waits until it answers, and says what it did.
#
#   deploy/up.sh --model MODEL   up, and leave it running; .env then says so to `docker compose up`
#   deploy/up.sh --check         kill, restart and compare; take it down again
#   deploy/up.sh --help
#
# Needs a container engine, and Python 3.11 with PyYAML; --check needs what `make setup-dev` installs.
set -eu
cd "$(dirname "$0")/.."
if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
exec "${PYTHON:-$python}" -m deploy.compose "$@"
