"""The chat templates of the families that are served, in our own words: every kind of conversation
renders as by `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja_reference import ours, theirs

FOLDER = Path(__file__).with_name("chat_templates")
BUILT_IN = Path(__file__).parents[2] / "router/text/src/chat/templates"
PATHS = sorted([*FOLDER.glob("*.jinja"), *BUILT_IN.glob("*.jinja")])
FAMILIES = {path.stem: path.read_text() for path in PATHS}
TAKES_PARTS = {"llama_3", "llama_4", "llama_4_json", "gemma_3", "glm_4_5", "minimax_m2"}
"""Those that loop over a content's parts; the others get the parts joined."""
NO_TOOLS = {"gemma_2", "gemma_3", "phi_3", "phi_4"}
"""Templates without tools: tools, calls and results are written as text."""

USER: Any = {"role": "user", "content": " What is the weather in Zürich? "}
SYSTEM: Any = {"role": "system", "content": "Be brief."}
ANSWER: Any = {"role": "assistant", "content": "It rains.\n"}
AGAIN: Any = {"role": "user", "content": "And <b>tomorrow</b>?"}
THOUGHT: Any = {**ANSWER, "reasoning_content": "Look it up.\nThen answer."}
INLINE: Any = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nIt rains."}
PARTS: Any = {
    **USER,
    "content": [{"type": "text", "text": "One. "}, {"type": "text", "text": "Two."}],
}


def call(index: int = 0, **arguments: Any) -> dict[str, Any]:
    """A call of an assistant's turn, as clients send it."""
    function = {"name": "get_weather", "arguments": json.dumps(arguments)}
    return {"id": f"abcdefg{index:02}", "type": "function", "function": function}


CITY = call(0, city='Zürich "A"', days=[1, 2.0, 10**20], options={"hours": True, "unit": None})
CALLS: Any = {"role": "assistant", "content": None, "tool_calls": [CITY]}
BOTH: Any = {**CALLS, "tool_calls": [CITY, call(1, city="Bern")]}
SAID: Any = {**CALLS, "content": "Let me see.", "reasoning_content": "I need the weather."}
RESULT: Any = {"role": "tool", "tool_call_id": "abcdefg00", "content": '{"rain": true}'}
SECOND: Any = {**RESULT, "tool_call_id": "abcdefg01", "content": "dry"}
CONVERSATIONS = {
    "one turn": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, AGAIN],
    "system and turns": [SYSTEM, USER, ANSWER, AGAIN, ANSWER, USER],
    "thoughts": [USER, THOUGHT, AGAIN],
    "last thoughts": [USER, THOUGHT],
    "thoughts in the text": [USER, INLINE, AGAIN],
    "call": [USER, CALLS],
    "result": [SYSTEM, USER, CALLS, RESULT],
    "results": [USER, BOTH, RESULT, SECOND],
    "after the result": [USER, CALLS, RESULT, ANSWER, AGAIN],
    "words beside a call": [USER, SAID, RESULT, ANSWER],
    "parts": [PARTS],
    "parts and turns": [SYSTEM, PARTS, ANSWER, PARTS],
}
CITY_SCHEMA: Any = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Which <city>."},
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "where": {"type": "number", "minimum": -1.5, "maximum": 1e20},
        "options": {
            "type": "object",
            "properties": {"hours": {"type": "boolean"}},
            "additionalProperties": False,
        },
    },
    "required": ["city"],
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather's forecast: for a city in Europe, for \u00e9 few days.",
            "parameters": CITY_SCHEMA,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
]


def as_reference(message: dict[str, Any], family: str) -> dict[str, Any]:
    """The message as a user of `transformers` would pass it to this template."""
    message = dict(message)
    if isinstance(message["content"], list) and family not in TAKES_PARTS:
        message["content"] = "".join(part["text"] for part in message["content"])
    if "tool_calls" in message:
        message["tool_calls"] = [
            {
                **made,
                "function": {
                    **made["function"],
                    "arguments": json.loads(made["function"]["arguments"]),
                },
            }
            for made in message["tool_calls"]
        ]
    return message


@pytest.mark.parametrize("open_turn", [True, False], ids=["open", "bare"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_chat_templates_render_as_in_transformers(
    family: str, conversation: str, tools: Any, open_turn: bool
) -> None:
    messages = CONVERSATIONS[conversation]
    if family in NO_TOOLS and (tools or any("tool_calls" in message for message in messages)):
        kind, text = ours(FAMILIES[family], messages, tools)
        assert kind == "error" or "get_weather" in text
        return
    reference = [as_reference(message, family) for message in messages]
    for variables in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        variables = {**variables, "add_generation_prompt": open_turn}
        wanted = theirs(FAMILIES[family], reference, tools, **variables)
        rendered = ours(FAMILIES[family], messages, tools, **variables)
        assert rendered[0] == wanted[0], (rendered, wanted)
        assert rendered[0] == "error" or rendered == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_most_conversations_render_without_error(family: str) -> None:
    """The comparison above is not one of errors: families refuse few conversations."""
    taken = [
        theirs(FAMILIES[family], [as_reference(message, family) for message in messages])[0]
        for messages in CONVERSATIONS.values()
    ]
    assert taken.count("text") >= 5, taken
    assert theirs(FAMILIES[family], [USER], TOOLS)[0] == "text"
