#!/usr/bin/env bash
# Generates the protocol code of the Python side into the folder given, as penstock/rpc/.
set -euo pipefail
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
# grpc_tools derives import paths from file paths: generate from where the package will be.
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/penstock/rpc"
cp penstock/v1/shard.proto "$staging/penstock/rpc/"
"${PYTHON:-python3}" -m grpc_tools.protoc -I "$staging" --python_out="$out" --pyi_out="$out" \
    --grpc_python_out="$out" penstock/rpc/shard.proto
