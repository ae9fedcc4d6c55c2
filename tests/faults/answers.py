"""Answers of all routes in one form, whichever events they came in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Data = dict[str, Any]


@dataclass
class Choice:
    """One of the answers to a prompt."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # chosen ones and alternatives, in order
    finish: str | None = None


@dataclass
class Answer:
    """What a client got."""

    status: int = 0  # 0: no HTTP status arrived
    choices: dict[int, Choice] = field(default_factory=dict)
    error: str | None = None
    retry_after: float | None = None  # seconds
    times: list[float] = field(default_factory=list)  # of events, time.monotonic()
    ended: bool = False  # the mark of the end arrived

    @property
    def complete(self) -> bool:
        """Whether nothing is missing at the end."""
        choices = self.choices.values()
        finished = bool(choices) and all(choice.finish for choice in choices)
        return self.status == 200 and self.error is None and self.ended and finished

    def choice(self, index: int) -> Choice:
        """The choice of this index, which exists from then on."""
        return self.choices.setdefault(index, Choice())


def read(path: str, data: Data, answer: Answer) -> None:
    """Adds a whole answer, or one event of a stream, of the route `path`."""
    if (error := data.get("error")) is not None:
        answer.error = str(error)
        return
    READERS[path](data, answer)


def _native(data: Data, answer: Answer) -> None:
    """`/generate`: the whole answer."""
    details = data["details"]
    several = [data, *(details.get("best_of_sequences") or [])]
    for index, part in enumerate(several):
        choice = answer.choice(index)
        one = details if index == 0 else part
        choice.text, choice.finish = part["generated_text"], one["finish_reason"]
        listed = [token for token in one["prefill"] if token["logprob"] is not None]
        choice.logprobs += [token["logprob"] for token in listed]
        for token in one["tokens"]:
            _add_native(token, choice)
        for tokens in one.get("top_tokens") or []:
            choice.logprobs += [token["logprob"] for token in tokens]
    answer.ended = True


def _native_event(data: Data, answer: Answer) -> None:
    choice = answer.choice(0)
    _add_native(data["token"], choice)
    choice.logprobs += [token["logprob"] for token in data.get("top_tokens") or []]
    if data.get("generated_text") is not None:
        choice.text = data["generated_text"]
        choice.finish = data["details"]["finish_reason"]
        answer.ended = True


def _add_native(token: Data, choice: Choice) -> None:
    choice.tokens.append(token["id"])
    choice.logprobs.append(token["logprob"])


def _completion(data: Data, answer: Answer) -> None:
    for part in data["choices"]:
        choice = answer.choice(part["index"])
        choice.text += part["text"]
        scores = part.get("logprobs") or {}
        choice.logprobs += [score for score in scores.get("token_logprobs", []) if score]
        for alternatives in scores.get("top_logprobs") or []:
            choice.logprobs += (alternatives or {}).values()
        _end_openai(part, choice)


def _chat(data: Data, answer: Answer) -> None:
    for part in data["choices"]:
        choice = answer.choice(part["index"])
        message = part.get("delta") or part.get("message") or {}
        choice.text += (message.get("reasoning_content") or "") + (message.get("content") or "")
        for call in message.get("tool_calls") or []:
            function = call.get("function") or {}
            choice.text += (function.get("name") or "") + (function.get("arguments") or "")
        for token in (part.get("logprobs") or {}).get("content") or []:
            choice.logprobs.append(token["logprob"])
            choice.logprobs += [other["logprob"] for other in token["top_logprobs"]]
        _end_openai(part, choice)


def _end_openai(part: Data, choice: Choice) -> None:
    choice.tokens += part.get("token_ids") or []
    choice.finish = part.get("finish_reason") or choice.finish


def _messages(data: Data, answer: Answer) -> None:
    choice = answer.choice(0)
    delta = data.get("delta", {})
    choice.text += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
    choice.finish = delta.get("stop_reason") or choice.finish
    answer.ended |= data["type"] == "message_stop"


def _responses(data: Data, answer: Answer) -> None:
    choice = answer.choice(0)
    kind = data["type"]
    if kind == "response.output_text.delta":
        choice.text += data["delta"]
    elif kind in ("response.completed", "response.incomplete"):
        choice.finish = data["response"]["status"]
        answer.ended = True
    elif kind in ("response.failed", "error"):
        answer.error = str(data)


READERS: dict[str, Callable[[Data, Answer], None]] = {
    "/generate": _native,
    "/generate_stream": _native_event,
    "/v1/completions": _completion,
    "/v1/chat/completions": _chat,
    "/v1/messages": _messages,
    "/v1/responses": _responses,
}
