"""The official `openai` client for node works unmodified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from serving import Server

SCRIPT = Path(__file__).with_name("openai_node.cjs")


def environment() -> dict[str, str] | None:
    """Where node finds a global `openai`; none if there is no node or no such package."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return None
    root = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True, check=True)
    found = {**os.environ, "NODE_PATH": root.stdout.strip()}
    probe = subprocess.run(["node", "-e", "require('openai')"], env=found, capture_output=True)
    return found if probe.returncode == 0 else None


def test_the_node_client(server: Server) -> None:
    found = environment()
    if found is None:
        pytest.skip("needs node and `npm install -g openai`")
    out = subprocess.run(
        ["node", str(SCRIPT), server.url],
        env=found,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout
    seen = json.loads(out)
    assert seen["models"] == ["brook"]
    assert "42" in seen["whole"]
    assert seen["text"] == seen["whole"]
    assert seen["usage"] == seen["wholeUsage"]
    assert seen["completion"] == "length"
    assert seen["failure"]["status"] == 422
    assert seen["failure"]["name"] == "UnprocessableEntityError"
    assert seen["failure"]["param"] == "max_tokens"
