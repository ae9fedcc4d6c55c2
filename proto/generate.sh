#!/usr/bin/env bash
# Regenerates what is checked in: the protocol code of both languages and the golden messages.
# `make proto` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHON=${PYTHON:-python3}
cargo run --quiet -p penstock-proto-codegen
proto/python.sh python
for text in proto/golden/*.txtpb; do
    message=$(sed -n 's/^# proto-message: //p' "$text")
    "$PYTHON" -m grpc_tools.protoc -I proto --encode="$message" penstock/v1/shard.proto \
        <"$text" >"${text%.txtpb}.bin"
done
