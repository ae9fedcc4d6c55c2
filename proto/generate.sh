#!/usr/bin/env bash
# Regenerates the checked-in protocol code of both languages. `make proto` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
cargo run --quiet -p penstock-proto-codegen
# grpc_tools derives import paths from file paths: generate from where the package will be.
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/penstock/rpc"
cp proto/penstock/v1/shard.proto "$staging/penstock/rpc/"
"$python" -m grpc_tools.protoc -I "$staging" --python_out=python --pyi_out=python \
    --grpc_python_out=python penstock/rpc/shard.proto
touch python/penstock/rpc/__init__.py
