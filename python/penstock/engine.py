"""What LLM and AsyncLLM share: an engine of their own, and answers put together from events."""

from __future__ import annotations

import json
import secrets
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from penstock import _core
from penstock.progress import Phases
from penstock.request import Completion, Logprob, Logprobs, SamplingParams, ToolCall

Prompt = str | Sequence[int]
Message = dict[str, object]
Option = str | int | float | bool | PathLike[str]
# What may be said of a conversation, as fields of /v1/chat/completions.
CHAT_FIELDS = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
ID_BYTES = 6  # of the nine characters that some chat templates insist on


@dataclass(frozen=True)
class Conversation:
    """Messages, and what else is said of their conversation. Raises TypeError for other fields."""

    messages: list[Message]
    fields: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.fields:
            if name not in CHAT_FIELDS:
                raise TypeError(f"chat takes no {name}, only {', '.join(CHAT_FIELDS)}")
        given = {name: value for name, value in self.fields.items() if value is not None}
        object.__setattr__(self, "fields", given)


def flags(model: str | PathLike[str] | None, options: dict[str, Option]) -> list[str]:
    """The options as `penstock serve` takes them: max_len=100 is --max-len=100."""
    named = {**({} if model is None else {"model": model}), **options}
    words: list[str] = []
    for name, value in named.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not False and value is not None:
            words.append(f"{flag}={value}")
    return words


def open_engine(
    model: str | PathLike[str] | None, options: dict[str, Option], progress: bool
) -> _core.Engine:
    """Loads a model. Raises ValueError for wrong options, RuntimeError if it cannot be loaded."""
    phases = Phases(progress)
    package = str(Path(__file__).parent)
    try:
        return _core.Engine(flags(model, options), sys.executable, package, phases)
    finally:
        phases.close()


def closes_at_exit(owner: object, engine: _core.Engine) -> Callable[[], object]:
    """Closes the engine when its owner is forgotten or the interpreter ends."""
    return weakref.finalize(owner, engine.close)


def is_single(prompts: object) -> bool:
    """Whether it is one prompt rather than a list of them."""
    if isinstance(prompts, str):
        return True
    return isinstance(prompts, Sequence) and bool(prompts) and isinstance(prompts[0], int)


def begin(
    engine: _core.Engine,
    prompt: Prompt | list[Message] | Conversation,
    params: SamplingParams,
    deliver: Callable[[_core.Event], object],
) -> _core.Request:
    """Begins an answer to a text, to token ids, or to messages."""
    if isinstance(prompt, str):
        return engine.generate(prompt, params, deliver)
    if isinstance(prompt, Conversation):
        body = {"messages": prompt.messages, **prompt.fields}
        return engine.chat(json.dumps(body), params, deliver)
    if prompt and isinstance(prompt[0], dict):
        return begin(engine, Conversation(list(prompt)), params, deliver)  # type: ignore[arg-type]
    return engine.generate(list(prompt), params, deliver)  # type: ignore[arg-type]


def single(params: SamplingParams) -> SamplingParams:
    """The parameters, unless they ask for several answers: ValueError."""
    if params.made > 1:
        raise ValueError("n and best_of must be 1 here: this returns one answer")
    return params


def checked(event: _core.Event) -> _core.Event:
    """The event, unless the request failed: ValueError for its own fault, else RuntimeError."""
    if event.error is not None:
        raise (ValueError if event.invalid else RuntimeError)(event.error)
    return event


class Answers:
    """The answers to one prompt, which grow by events."""

    def __init__(self, params: SamplingParams) -> None:
        self.wanted = params.n
        self.drafts = [Draft(params) for _ in range(params.made)]
        self.done: dict[int, Completion] = {}

    def add(self, event: _core.Event) -> list[Completion] | None:
        """Takes the next event; the answers, once all are whole. Raises as `checked`."""
        completion = self.drafts[event.branch].add(event)
        if completion is not None:
            self.done[event.branch] = completion
        if len(self.done) < len(self.drafts):
            return None
        answers = [self.done[branch] for branch in range(len(self.drafts))]
        if len(answers) > self.wanted:
            answers.sort(key=lambda each: -each.cumulative_logprob / max(len(each.logprobs), 1))
        return answers[: self.wanted]


class Draft:
    """A completion that grows by events."""

    def __init__(self, params: SamplingParams) -> None:
        self.pieces: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[Logprobs] | None = None if params.logprobs is None else []
        self.prompt_logprobs: list[Logprobs | None] | None = None
        self.thoughts: list[str] = []
        self.calls: list[tuple[str, list[str]]] = []

    def add(self, event: _core.Event) -> Completion | None:
        """Takes the next event; the completion, once it is whole. Raises as `checked`."""
        checked(event)
        self.pieces.append(event.text)
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs
        if self.top_logprobs is not None:
            self.top_logprobs += map(_logprobs, event.top_logprobs)
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = [_logprobs(told) or None for told in event.prompt_logprobs]
        for kind, text in event.pieces:
            if kind == "thought":
                self.thoughts.append(text)
            elif kind == "call":
                self.calls.append((text, []))
            else:
                self.calls[-1][1].append(text)
        if event.finish_reason is None:
            return None
        called = bool(self.calls) and event.finish_reason == "stop"
        return Completion(
            "".join(self.pieces),
            self.token_ids,
            self.logprobs,
            "tool_calls" if called else event.finish_reason,
            event.prompt_tokens,
            self.top_logprobs,
            self.prompt_logprobs,
            "".join(self.thoughts),
            tuple(_call(name, parts) for name, parts in self.calls),
        )


def _call(name: str, parts: list[str]) -> ToolCall:
    return ToolCall(secrets.token_hex(ID_BYTES)[:9], name, "".join(parts))


def _logprobs(told: list[_core.Likely]) -> Logprobs:
    return {token_id: Logprob(logprob, rank, text) for token_id, logprob, rank, text in told}
