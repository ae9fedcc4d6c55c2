"""The official `openai` and Anthropic clients for node work unmodified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from serving import Server

HERE = Path(__file__).parent


def environment(package: str) -> dict[str, str] | None:
    """Where node finds `package`: NODE_PATH, or what is installed globally. None if nowhere."""
    if shutil.which("node") is None:
        return None
    found = dict(os.environ)
    if "NODE_PATH" not in found and shutil.which("npm") is not None:
        root = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True, check=True)
        found["NODE_PATH"] = root.stdout.strip()
    probe = subprocess.run(["node", "-e", f"require('{package}')"], env=found, capture_output=True)
    return found if probe.returncode == 0 else None


def run(server: Server, package: str, script: str) -> dict[str, Any]:
    """What the script saw."""
    found = environment(package)
    if found is None:
        pytest.skip(f"needs node and its package {package}: `make client-test` installs it")
    command = ["node", str(HERE / script), server.url]
    done = subprocess.run(command, env=found, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def seen(server: Server) -> dict[str, Any]:
    return run(server, "openai", "openai_node.cjs")


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


def test_errors_raise_the_clients_exceptions(seen: dict[str, Any]) -> None:
    failures = seen["failures"]
    for kind in ("value", "stream"):
        assert failures[kind]["name"] == "BadRequestError"
        assert (failures[kind]["status"], failures[kind]["param"]) == (400, "max_tokens")
    assert (failures["model"]["name"], failures["model"]["param"]) == ("NotFoundError", "model")
    assert failures["schema"]["name"] == "BadRequestError"


def test_anthropic_tool_loops(server: Server) -> None:
    """Of several turns with tools, by hand and by the client itself."""
    seen = run(server, "@anthropic-ai/sdk", "anthropic_node.cjs")
    for how in ("whole", "streamed"):
        for turn in seen[how]:
            (call,) = turn["reply"]
            assert (call["type"], call["name"], turn["reason"]) == (
                "tool_use",
                "get_weather",
                "tool_use",
            )
            assert isinstance(call["input"]["city"], str)
            assert turn["end"] == "end_turn"
        first = seen[how][0]
        assert first["reply"][0]["input"] == {"city": "Paris"}
        assert "21" in first["said"][0]["text"]
    assert "21" in seen["runner"][0]["text"]
    failure = seen["failure"]
    assert (failure["name"], failure["status"]) == ("BadRequestError", 400)
    assert "max_tokens" in failure["message"]
