"""The parts shared by LLM and AsyncLLM: the engine, and completions built from events."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from operator import index
from os import PathLike
from pathlib import Path
from typing import Any

from penstock import _core
from penstock.progress import Phases
from penstock.request import Completion, Logprob, Logprobs, SamplingParams, ToolCall

Prompt = str | Sequence[int]  # or an array of ids, numpy's or torch's
Message = dict[str, object]
Option = str | int | float | bool | PathLike[str]
# Fields of /v1/chat/completions, other than messages, that `chat` accepts.
CHAT_FIELDS = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
# Submitted requests per running one, so that the engine always has a next request and never rejects
# one for the length of its queue.
AHEAD = 2
IDS = 1 << 32  # upper bound of token ids; a model's are below its vocabulary size
ID_BYTES = 6  # gives the nine characters that some chat templates require


@dataclass(frozen=True)
class Conversation:
    """Messages and other fields of a chat request. Raises TypeError for unknown fields."""

    messages: list[Message]
    fields: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.fields:
            if name not in CHAT_FIELDS:
                raise TypeError(f"chat does not accept {name}, only {', '.join(CHAT_FIELDS)}")
        given = {name: value for name, value in self.fields.items() if value is not None}
        object.__setattr__(self, "fields", given)


def flags(model: str | PathLike[str] | None, options: dict[str, Option]) -> list[str]:
    """Converts options to flags of `penstock serve`: max_len=100 is --max-len=100."""
    named = {**({} if model is None else {"model": model}), **options}
    words: list[str] = []
    for name, value in named.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not False and value is not None:
            words.append(f"{flag}={value}")
    return words


class OpenEngine:
    """A loaded model and the process that owns it. A fork of that process has no engine threads."""

    def __init__(self, engine: _core.Engine) -> None:
        self._engine = engine
        self._process = os.getpid()
        self.default_params = default_params(engine)
        self.most = AHEAD * engine.max_slots  # submitted requests, per loop or for all threads
        # Shared by the calls of all threads. Each call may submit one more, so none waits for
        # another.
        self.room = threading.Semaphore(self.most)

    @property
    def engine(self) -> _core.Engine:
        """The engine. Raises RuntimeError in a fork, where no request would ever finish."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"the engine is in process {self._process}, and this process is a fork of it: load "
                'a model here, or start processes with multiprocessing.get_context("spawn")'
            )
        return self._engine

    def close(self) -> None:
        """Stops the engine; in a fork, does nothing."""
        if os.getpid() == self._process:
            self._engine.close()
        else:
            # Keep it alive: freeing it would wait for threads that do not exist in a fork.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))


def default_params(engine: _core.Engine) -> SamplingParams:
    """The parameters of a request without params: generation_config.json's, then ours."""
    recommended = json.loads(engine.generation_defaults)
    if (tokens := recommended.pop("max_new_tokens", None)) is not None:
        recommended["max_tokens"] = tokens
    return SamplingParams(**recommended)


def open_engine(
    model: str | PathLike[str] | None, options: dict[str, Option], progress: bool
) -> OpenEngine:
    """Loads a model. Raises ValueError for wrong options, RuntimeError if it cannot be loaded."""
    phases = Phases(progress)
    package = str(Path(__file__).parent)
    try:
        return OpenEngine(_core.Engine(flags(model, options), sys.executable, package, phases))
    finally:
        phases.close()


def closes_at_exit(owner: object, engine: OpenEngine) -> Callable[[], object]:
    """Closes the engine when its owner is collected or the interpreter exits."""
    return weakref.finalize(owner, engine.close)


def is_single(prompts: object) -> bool:
    """Returns whether this is one prompt rather than a list of prompts."""
    if isinstance(prompts, str | Mapping):
        return True
    dimensions = getattr(prompts, "ndim", None)
    if dimensions is not None:
        return bool(dimensions == 1)
    return isinstance(prompts, Sequence) and bool(prompts) and isinstance(prompts[0], Integral)


def readable(prompt: Any) -> str | list[int]:
    """Converts a prompt to a text or a list of token ids.

    Raises TypeError for anything else, and ValueError for what no model supports: a lone surrogate,
    a token id out of range.
    """
    if isinstance(prompt, str):
        prompt.encode()
        return prompt
    listed = getattr(prompt, "tolist", lambda: prompt)()
    if isinstance(listed, bytes | bytearray | Mapping):
        raise TypeError(f"a prompt must be a text or token ids, not {type(prompt).__name__}")
    ids = list(map(index, listed))
    for token_id in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= token_id < IDS:
            raise ValueError(f"prompt token ids must be from 0 to {IDS - 1}, not {token_id}")
    return ids


def begin(
    engine: _core.Engine,
    prompt: Prompt | list[Message] | Conversation,
    params: SamplingParams,
    deliver: Callable[[_core.Event], object],
) -> _core.Request:
    """Submits a request for a text, token ids, or messages."""
    if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], dict):
        prompt = Conversation(list(prompt))  # type: ignore[arg-type]
    if isinstance(prompt, Conversation):
        body = {"messages": prompt.messages, **prompt.fields}
        return engine.chat(json.dumps(body), params, deliver)
    return engine.generate(readable(prompt), params, deliver)


def checked_params(params: object) -> SamplingParams:
    """Returns the parameters. Raises TypeError for anything else."""
    if not isinstance(params, SamplingParams):
        raise TypeError(f"params must be SamplingParams, not {type(params).__name__}")
    return params


def each_params(
    params: SamplingParams | Sequence[SamplingParams], count: int
) -> list[SamplingParams]:
    """Returns the parameters of each of `count` prompts: one for all, or a list with one for
    each. Raises ValueError for a list of another length."""
    if not isinstance(params, Sequence) or isinstance(params, str):
        return [checked_params(params)] * count
    if len(params) != count:
        raise ValueError(f"params must be one, or one for each of {count} prompts: {len(params)}")
    return [checked_params(each) for each in params]


def single(params: SamplingParams) -> SamplingParams:
    """Returns the parameters; raises ValueError if they request several choices."""
    params = checked_params(params)
    if params.choice_count > 1:
        raise ValueError("n and best_of must be 1 here: this returns one completion")
    return params


def checked(event: _core.Event) -> _core.Event:
    """Returns the event. If the request failed, raises ValueError for an invalid request, else
    RuntimeError."""
    if event.error is not None:
        raise (ValueError if event.invalid else RuntimeError)(event.error)
    return event


class PromptCompletions:
    """Builds the completions of one prompt from events."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.builders: dict[
            int, CompletionBuilder
        ] = {}  # by choice, made on demand: an invalid n may be in the billions
        self.done: dict[int, Completion] = {}

    def add(self, event: _core.Event) -> list[Completion] | None:
        """Adds the next event. Returns the completions once all are finished. Raises as
        `checked`."""
        checked(event)
        builder = self.builders.setdefault(event.choice, CompletionBuilder(self.params))
        completion = builder.add(event)
        if completion is not None:
            self.done[event.choice] = completion
        if len(self.done) < self.params.choice_count:
            return None
        answers = [self.done[choice] for choice in range(self.params.choice_count)]
        if len(answers) > self.params.n:
            answers.sort(key=lambda each: -each.cumulative_logprob / max(len(each.logprobs), 1))
        return answers[: self.params.n]


class CompletionBuilder:
    """Builds a completion from events."""

    def __init__(self, params: SamplingParams) -> None:
        self.pieces: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[Logprobs] | None = None if params.logprobs is None else []
        self.prompt_logprobs: list[Logprobs | None] | None = None
        self.reasoning: list[str] = []
        self.calls: list[tuple[str, list[str]]] = []
        self.call_ids: dict[int, str] = {}  # of those calls whose ids the model wrote

    def add(self, event: _core.Event) -> Completion | None:
        """Adds the next event. Returns the completion once it is finished."""
        self.pieces.append(event.text)
        self.token_ids += event.token_ids
        self.logprobs += event.logprobs
        if self.top_logprobs is not None:
            self.top_logprobs += map(_logprobs, event.top_logprobs)
        if event.prompt_logprobs is not None:
            self.prompt_logprobs = [_logprobs(tokens) or None for tokens in event.prompt_logprobs]
        for kind, text in event.pieces:
            if kind == "reasoning":
                self.reasoning.append(text)
            elif kind == "call":
                self.calls.append((text, []))
            elif kind == "call_id":
                self.call_ids[len(self.calls) - 1] = text
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
            "".join(self.reasoning),
            tuple(
                ToolCall(self.call_ids.get(index) or _call_id(), name, "".join(parts))
                for index, (name, parts) in enumerate(self.calls)
            ),
        )


def _call_id() -> str:
    return secrets.token_hex(ID_BYTES)[:9]


def _logprobs(tokens: list[_core.TokenLogprob]) -> Logprobs:
    return {token_id: Logprob(logprob, rank, text) for token_id, logprob, rank, text in tokens}
