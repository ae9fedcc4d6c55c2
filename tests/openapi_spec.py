"""docs/openapi.json, and what its fields need beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DESCRIPTION = Path(__file__).resolve().parents[1] / "docs/openapi.json"
API: dict[str, Any] = json.loads(DESCRIPTION.read_text())
SCHEMAS: dict[str, Any] = API["components"]["schemas"]
# Fields that mean something only beside others, or instead of others.
BESIDE: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "best_of": {"do_sample": True},
    "beam_width": {"use_beam_search": True},
    "early_stopping": {"use_beam_search": True},
    "length_penalty": {"use_beam_search": True},
    "tool_choice": {"tools": []},
    "guided_complete": {"guided_regex": "[0-9]"},
    "top_logprobs": {"logprobs": True, "include": ["message.output_text.logprobs"]},
}
INSTEAD = {"input_ids": "text_input"}


def spoken(fields: tuple[str, ...], **body: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return dict.fromkeys((("TokenizeRequest", field) for field in fields), body)


# (schema, field) -> a body in place of the route's example, where that is of another dialect.
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    **spoken(("prompt", "messages")),
    **spoken(("model", "add_special_tokens", "return_token_strs"), prompt="Once upon a time"),
    **spoken(
        (
            "add_generation_prompt",
            "continue_final_message",
            "chat_template",
            "chat_template_kwargs",
            "tools",
        ),
        messages=[{"role": "user", "content": "What is 12 + 30?"}],
    ),
}


def filled(path: str, response_id: str = "resp_1") -> str:
    """With a model and its version, or a stored response, where the path names them."""
    path = path.replace("{model}", "penstock").replace("{version}", "1")
    return path.replace("{id}", response_id)


def posts() -> dict[str, Any]:
    """Path -> the content of its JSON body."""
    return {
        path: methods["post"]["requestBody"]["content"]["application/json"]
        for path, methods in API["paths"].items()
        if "post" in methods
    }
