#!/bin/sh
# A timeline of the worker under load: bench/timeline.sh {1b,8b} OUT_DIR ROW... (rows of h200.py).
# Starts a worker that keeps its timeline, a server that attaches it, and the rows' clients; writes
# OUT_DIR/trace.json (for chrome://tracing or Perfetto) and OUT_DIR/timeline.png.
set -e
cd "$(dirname "$0")/.."
PYTHONPATH="$PWD/python:$PWD/kernels${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
shape=$1 out=$2
shift 2
mkdir -p "$out"
mkfifo "$out/lease"
sleep 3600 > "$out/lease" & lease=$!
python3 -m penstock.worker --socket "$out/worker.sock" --trace "$out/trace.json" < "$out/lease" &
worker=$!
trap 'kill $lease 2> /dev/null; rm -f "$out/lease"' EXIT
while [ ! -S "$out/worker.sock" ]; do sleep 0.1; done
python3 bench/h200.py "$shape" --out "$out" --rows "$@" ${PENSTOCK:+--penstock $PENSTOCK} \
    ${LOAD:+--load $LOAD} --serve --worker "unix:$out/worker.sock"
kill $lease
wait $worker || true
python3 bench/timeline.py "$out/trace.json" --png "$out/timeline.png"
