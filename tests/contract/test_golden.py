"""The golden messages: the other half of this test is router/engine/tests/all/golden.rs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format
from penstock.rpc import shard_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = sorted((ROOT / "proto/golden").glob("*.txtpb"))


@pytest.mark.parametrize("text", GOLDEN, ids=lambda path: path.stem)
def test_golden_bytes_match_their_text(text: Path) -> None:
    source = text.read_text(encoding="utf-8")
    named = re.search(r"^# proto-message: penstock\.v1\.(\w+)$", source, re.MULTILINE)
    assert named, f"{text} does not say which message it is"
    message = getattr(pb, named[1])
    expected = text_format.Parse(source, message())
    data = text.with_suffix(".bin").read_bytes()
    decoded = message.FromString(data)
    assert decoded == expected
    assert decoded.SerializeToString(deterministic=True) == data


def test_every_golden_message_has_a_text() -> None:
    stems = {path.stem for path in (ROOT / "proto/golden").glob("*.bin")}
    assert stems == {path.stem for path in GOLDEN}
    assert stems


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="generating needs grpcio-tools")
    script = ROOT / "proto/python.sh"
    env = {"PYTHON": sys.executable, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    subprocess.run([script, tmp_path], check=True, env=env)
    fresh = sorted((tmp_path / "penstock/rpc").iterdir())
    assert len(fresh) == 3
    for path in fresh:
        kept = ROOT / "python/penstock/rpc" / path.name
        assert kept.read_text() == path.read_text(), f"{kept} is out of date: run `make proto`"
