"""The table of the native API (contract/native.json), and ways to ask a server about it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
from serving import Server

PROMPT = "Once upon a time"
HERE = Path(__file__).resolve().parent
TABLE: dict[str, Any] = json.loads((HERE / "contract/native.json").read_text())
_DOCUMENT = (HERE.parent / "docs/tgi.md").read_text()
# What docs/tgi.md says of everything that is not as the table has it.
DIFFERENCES = _DOCUMENT.split("## Different on purpose")[1].split("\n## ")[0]
# Of brook on a server that nobody configured; /info tells the others.
MAX_TOP_N_TOKENS = 20


def post(server: Server, path: str, **parameters: object) -> httpx.Response:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 6, **parameters}}
    return httpx.post(server.url + path, json=body, timeout=60)


def events(server: Server, **parameters: object) -> tuple[httpx.Headers, list[dict[str, Any]]]:
    reply = post(server, "/generate_stream", **parameters)
    assert reply.headers["content-type"].startswith("text/event-stream")
    return reply.headers, frames(reply)


def frames(reply: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, without the `[DONE]` of OpenAI's routes."""
    result = reply.text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith(("data: {", "data: [DONE]")) for frame in result)
    return [json.loads(frame[6:]) for frame in result if frame != "data: [DONE]"]


def limits(server: Server) -> dict[str, int]:
    """The server's limits, by their names in the table."""
    info = httpx.get(server.url + "/info").json()
    result = {name: value for name, value in info.items() if name.startswith("max_")}
    return {**result, "max_top_n_tokens": MAX_TOP_N_TOKENS}


def begins(text: str, error: str, most: dict[str, int]) -> bool:
    """Whether an error is the table's; its placeholders are limits, or numbers that were given."""
    pattern = re.escape(text)
    for name, value in most.items():
        # "less than" it, says the text, which is TGI's: so it is one more than the most that pass.
        result = value + (name == "max_input_tokens")
        pattern = pattern.replace(re.escape(f"{{{name}}}"), str(result))
    pattern = re.sub(r"\\\{\w\\\}", r"\\d+", pattern)
    # The value may follow.
    return re.match(pattern, error) is not None


def flat(value: object, path: str = "") -> dict[str, list[Any]]:
    """The paths of all fields, as the table writes them -> their values."""
    found: dict[str, list[Any]] = {}
    if isinstance(value, list):
        for each in value:
            _add(found, flat(each, path + "[]"))
    elif isinstance(value, dict):
        for name, inner in value.items():
            at = f"{path}.{name}" if path else name
            found.setdefault(at, []).append(inner)
            _add(found, flat(inner, at))
    return found


def _add(found: dict[str, list[Any]], more: dict[str, list[Any]]) -> None:
    for path, values in more.items():
        found.setdefault(path, []).extend(values)


def flat_all(answers: list[Any]) -> dict[str, list[Any]]:
    """The same of several answers together."""
    found: dict[str, list[Any]] = {}
    for answer in answers:
        _add(found, flat(answer))
    return found
