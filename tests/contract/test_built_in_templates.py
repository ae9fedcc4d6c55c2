"""Prompts by the built-in templates of models whose repositories have code in their place. The
expected texts are what that code writes; here they have `|` for U+FF5C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja_reference import ours

BUILT_IN = Path(__file__).parents[2] / "router/text/src/chat/templates"
BOTH_NAMES = pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4"])
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "What is the weather in Bern?"}
THOUGHT = {"role": "assistant", "content": "It rains.", "reasoning_content": "Hm."}
AGAIN = {"role": "user", "content": "And tomorrow?"}
RESULTS = [{"role": "tool", "content": "wet"}, {"role": "tool", "content": "dry"}]
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"days": {}}}}
TOOLS = [{"type": "function", "function": TOOL}]
BEGIN, END, ANSWER = "<|begin▁of▁sentence|>", "<|end▁of▁sentence|>", "<|Assistant|>"
ASKED = f"<|User|>{USER['content']}"
CALLS = """<|DSML|invoke name="weather">
<|DSML|parameter name="city" string="true">"Bern"
</|DSML|parameter>
<|DSML|parameter name="days" string="false">[1, 2.0, null]</|DSML|parameter>
</|DSML|invoke>
<|DSML|invoke name="weather">

</|DSML|invoke>"""


def call(**arguments: Any) -> dict[str, Any]:
    """A call as clients send it."""
    function = {"name": "weather", "arguments": json.dumps(arguments)}
    return {"id": "c", "type": "function", "function": function}


CALLED = {
    "role": "assistant",
    "content": "Wait.",
    "reasoning_content": "Look.",
    "tool_calls": [call(city='"Bern"\n', days=[1, 2.0, None]), call()],
}


def prompt(name: str, messages: list[Any], tools: Any = None, **variables: Any) -> str:
    """What the template of this name writes."""
    source = (BUILT_IN / f"{name}.jinja").read_text()
    kind, text = ours(source, messages, tools, add_generation_prompt=True, **variables)
    assert kind == "text"
    return text.replace("\uff5c", "|")


@BOTH_NAMES
@pytest.mark.parametrize(
    ("variables", "mark"),
    [
        ({}, "</think>"),
        ({"thinking": True}, "<think>"),
        ({"enable_thinking": True}, "<think>"),
        ({"reasoning_effort": "low"}, "<think>"),
        ({"reasoning_effort": "none"}, "</think>"),
        ({"reasoning_effort": "low", "thinking": False}, "</think>"),
    ],
)
def test_deepseek_thinks_if_asked_to(name: str, variables: dict[str, Any], mark: str) -> None:
    """Reasoning before the last question is left out."""
    wanted = f"{BEGIN}Be brief.{ASKED}{ANSWER}</think>It rains.{END}"
    wanted += f"<|User|>And tomorrow?{ANSWER}{mark}"
    assert prompt(name, [SYSTEM, USER, THOUGHT, AGAIN], **variables) == wanted


def test_deepseek_v4_has_a_text_for_the_highest_effort() -> None:
    highest = prompt("deepseek_v4", [SYSTEM, USER], reasoning_effort="max")
    assert highest.startswith(f"{BEGIN}Reasoning Effort: Absolute maximum")
    without = prompt("deepseek_v4", [SYSTEM, USER], reasoning_effort="high")
    assert highest.endswith(without.removeprefix(BEGIN)) and "Effort" not in without


@pytest.mark.parametrize(
    ("thinks", "mark", "thought"), [(True, "<think>", "Look.</think>"), (False, "</think>", "")]
)
def test_results_of_tools(thinks: bool, mark: str, thought: str) -> None:
    """DeepSeek-V4 has them in the user's turn, and with tools keeps the reasoning of all turns."""
    messages = [USER, CALLED, *RESULTS]
    wanted = f"{BEGIN}{ASKED}{ANSWER}{mark}{thought}Wait.\n\n<|DSML|function_calls>\n{CALLS}\n"
    wanted += f"</|DSML|function_calls>{END}\n\n<function_results>\n<result>wet</result>\n"
    wanted += f"<result>dry</result>\n</function_results>\n\n{mark}"
    assert prompt("deepseek_v32", messages, thinking=thinks) == wanted
    wanted = f"{ANSWER}{mark}{thought}Wait.\n\n<|DSML|tool_calls>\n{CALLS}\n</|DSML|tool_calls>"
    wanted += f"{END}<|User|><tool_result>wet</tool_result>\n\n<tool_result>dry</tool_result>"
    wanted += f"\n\nAnd tomorrow?{ANSWER}{mark}"
    found = prompt("deepseek_v4", [*messages, AGAIN], TOOLS, thinking=thinks)
    assert found.partition(ASKED)[2] == wanted


@BOTH_NAMES
def test_tools_follow_the_system_message(name: str) -> None:
    alone, after = (prompt(name, [*first, USER], TOOLS) for first in ([], [SYSTEM]))
    assert after.startswith(f"{BEGIN}Be brief.\n\n## Tools\n\nYou have access to a set of tools")
    assert after == alone.replace(BEGIN, f"{BEGIN}Be brief.")
    assert f"\n{json.dumps(TOOL)}\n" in after
