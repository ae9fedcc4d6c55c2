"""The official `openai` client for node works unmodified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def seen(server: Server) -> dict[str, Any]:
    """What the script saw."""
    found = environment()
    if found is None:
        pytest.skip("needs node and `npm install -g openai`")
    done = subprocess.run(
        ["node", str(SCRIPT), server.url], env=found, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def test_answers_and_streams(seen: dict[str, Any]) -> None:
    assert seen["models"] == ["brook"]
    assert "42" in seen["whole"]
    assert seen["text"] == seen["whole"]
    for usage in (seen["usage"], seen["wholeUsage"]):
        del usage["prompt_tokens_details"]  # the second prompt is in the cache
    assert seen["usage"] == seen["wholeUsage"]
    assert seen["completion"]["finish_reason"] == "length"
    assert seen["completion"]["text"] == seen["streamed"]


def test_typed_answers(seen: dict[str, Any]) -> None:
    parsed = seen["parsed"]
    assert isinstance(parsed["whole"]["name"], str) and isinstance(parsed["whole"]["age"], int)
    assert parsed["streamed"] == parsed["whole"] == json.loads(parsed["content"])
    assert parsed["deltas"] == parsed["content"]
    for token in parsed["logprobs"]:
        assert len(token["top_logprobs"]) == 2
        assert token["top_logprobs"][0]["logprob"] == token["logprob"]


def test_tools(seen: dict[str, Any]) -> None:
    tools = seen["tools"]
    (call,) = tools["whole"]["message"]["tool_calls"]
    assert tools["whole"]["finish_reason"] == tools["streamed"]["finish_reason"] == "tool_calls"
    (streamed,) = tools["streamed"]["message"]["tool_calls"]
    assert streamed["function"]["name"] == call["function"]["name"] == "get_weather"
    for arguments in (call["function"]["arguments"], tools["deltas"]):
        assert json.loads(arguments) == {"city": "Paris"}
    # The client's own loop: call, result, answer.
    assert tools["cities"] == ["Paris"]
    assert tools["end"]


def test_responses(seen: dict[str, Any]) -> None:
    responses = seen["responses"]
    assert "42" in responses["whole"]
    assert responses["whole"] == responses["deltas"] == responses["streamed"]
    assert responses["call"]["type"] == "function_call"
    assert json.loads(responses["call"]["arguments"]) == {"city": "Paris"}
    assert "21" in responses["end"]


def test_errors_are_the_clients_exceptions(seen: dict[str, Any]) -> None:
    failures = seen["failures"]
    for kind in ("value", "stream"):
        assert failures[kind]["name"] == "BadRequestError"
        assert (failures[kind]["status"], failures[kind]["param"]) == (400, "max_tokens")
    assert (failures["model"]["name"], failures["model"]["param"]) == ("NotFoundError", "model")
    assert failures["schema"]["name"] == "BadRequestError"
