#!/bin/sh
# A benchmark that starts its own server, on one machine:
#   bench/h200.sh {1b,8b} [options]                  the serving table, see bench/h200.py
#   bench/h200.sh peer {brook,1b,8b} --peer COMMAND  the same rows by another server, in turns
#   bench/h200.sh features {brook,1b,8b} [options]   what features cost, see bench/features.py
#   bench/h200.sh structured_output {brook,1b,8b} [options]   what new schemas cost others, see bench/structured_output.py
#   bench/h200.sh invariance {brook,1b,8b} [options] same tokens in any batch? see bench/invariance.py
#   bench/h200.sh timeline {brook,1b,8b} [options]   when the device had work, see bench/timeline.py
set -e
cd "$(dirname "$0")/.."
script=h200
case "$1" in
features | invariance | structured_output | timeline) script=$1; shift ;;
peer) shift ;;
esac
python=${PYTHON:-python3}
[ -n "$PYTHON" ] || [ ! -x .venv/bin/python ] || python=.venv/bin/python
exec "$python" bench/run.py "$script" "$@"
