#!/bin/sh
# The serving table on one machine: bench/h200.sh {1b,8b} [options]; see bench/h200.py.
set -e
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD/python:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
exec python3 bench/h200.py "$@"
