"""Chat templates by Penstock, and by `transformers` with Jinja2 in the same run."""

from __future__ import annotations

import json
import re
from typing import Any

from penstock._core import render_chat
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

HELLO = [{"role": "user", "content": "hi"}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
REFERENCE = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")), **SPECIAL
)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
GENERATOR = re.compile(r"<generator object [^>]*>")
Rendered = tuple[str, str]
"""`text` and the text, or `error` and what is wrong."""


def ours(template: str, messages: Any = HELLO, tools: Any = None, **variables: Any) -> Rendered:
    """What Penstock renders; `add_generation_prompt` and `continue_final_message` as there."""
    prompt = "Add" if variables.pop("add_generation_prompt", False) else "Omit"
    prompt = "ContinueFinalMessage" if variables.pop("continue_final_message", False) else prompt
    job = {
        "template": template,
        "special_tokens": list(SPECIAL.items()),
        "messages": [as_turn(message) for message in messages],
        "generation_prompt": prompt,
        "system": None,
        "tools": json.dumps(tools) if tools else None,
        "tool_prompt": None,
        "variables": json.dumps(variables),
        "optional_variables": [],
    }
    reply = json.loads(render_chat(json.dumps(job)))
    return ("text", reply["Text"]) if "Text" in reply else ("error", reply["Refused"])


def as_turn(message: dict[str, Any]) -> dict[str, Any]:
    """A message of a client as the router keeps it."""
    turn = {
        name: message.get(name) for name in ("role", "reasoning_content", "name", "tool_call_id")
    }
    calls, content = message.get("tool_calls"), message.get("content")
    turn["tool_calls"] = json.dumps(calls) if calls else None
    turn["parts"] = [part["text"] for part in content] if isinstance(content, list) else []
    turn["content"] = "".join(turn["parts"]) if isinstance(content, list) else content
    return turn


def theirs(template: str, messages: Any = HELLO, tools: Any = None, **variables: Any) -> Rendered:
    """What `transformers` renders."""
    try:
        text = REFERENCE.apply_chat_template(
            messages, tools=tools, chat_template=template, tokenize=False, **variables
        )
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}"
    return "text", str(text)


def comparable(rendered: Rendered) -> Rendered:
    """Without what differs from run to run; errors are alike."""
    kind, text = rendered
    if kind == "error":
        return kind, ""
    return kind, ADDRESS.sub("", GENERATOR.sub("<generator object>", text))
