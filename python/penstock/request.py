"""Requests to an engine and their results."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral  # numpy's integers too
from typing import Protocol

from penstock import _core

SEEDS = 2**64


class Model(Protocol):
    """A pydantic model class."""

    def model_json_schema(self) -> dict[str, object]: ...


@dataclass(frozen=True)
class StructuredOutputsParams:
    """Structured output: exactly one of the first five.

    json: a document of this JSON schema: a dict, a text, or a pydantic model class.
    regex: a text that this regular expression matches from end to end.
    choice: one of these texts.
    grammar: a sentence of this grammar, in Lark's syntax or EBNF.
    json_object: any JSON object.
    complete: whether the output is completed within max_tokens; None is yes for json, choice and
        json_object, no for the others. Not allowed for a grammar.
    """

    json: str | Mapping[str, object] | Model | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    complete: bool | None = None

    wire: str = field(default="", init=False, repr=False, compare=False)  # for the engine

    def __post_init__(self) -> None:
        outputs = {name: getattr(self, name) for name in _STRUCTURED_OUTPUT_KINDS}
        given = [name for name in _STRUCTURED_OUTPUT_KINDS if outputs[name] is not None]
        if len(given) != 1:
            wrong = ", ".join(given) or "none"
            kinds = ", ".join(_STRUCTURED_OUTPUT_KINDS)
            raise ValueError(f"structured_outputs must be one of {kinds}, not {wrong}")
        self._check(given)
        if self.choice is not None:
            outputs["choice"] = list(self.choice)
        schema = getattr(self.json, "model_json_schema", None)
        if schema is not None:
            outputs["json"] = schema()
        try:
            wire = json.dumps({"complete": self.complete, "outputs": outputs})
        except TypeError as error:
            raise TypeError(f"json must be a JSON schema: {error}") from error
        object.__setattr__(self, "wire", wire)

    def _check(self, given: list[str]) -> None:
        if isinstance(self.choice, str):
            raise TypeError(f"choice must be a list of strings, not {self.choice!r}")
        if self.choice is not None and not self.choice:
            raise ValueError("choice must not be empty")
        _check_strings("choice", list(self.choice or ()))
        for name in ("regex", "grammar"):
            if name in given:
                _check_strings(name, [getattr(self, name)])
        if self.json_object is False:
            raise ValueError("json_object must be True or None, not False")
        if self.complete and self.grammar is not None:
            raise ValueError(
                "complete must not be True for a grammar: its shortest end is not known"
            )


# The kinds of structured output.
_STRUCTURED_OUTPUT_KINDS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters. Every value is checked on construction; the ranges are the server's.

    None for a list is an empty list.

    max_tokens: maximum length of the output; None is up to the model's context length.
    temperature: 0 is greedy sampling.
    top_k: sample from this many most probable tokens; 0 or -1 is off.
    top_p: sample from the most probable tokens with this cumulative probability; 1 is off.
    seed: the same seed draws the same random numbers in any batch, so the output is the same unless
        the GPU's rounding, which depends on the batch, flips a near tie. None draws a new seed for
        each request.
    stop: the output ends before the first of these strings.
    min_tokens: stop strings and the model's end token have no effect before this many tokens.
    include_stop_str_in_output: keep the stop string that ends the output.
    skip_special_tokens: leave special tokens out of the text.
    ignore_eos: the model's end token does not end the output.
    n: completions per prompt; the prompt is computed once. The first is the one that the same
        parameters without n give, the others have seeds derived from theirs.
    best_of: generate this many completions, at least n, and return the n with the highest mean
        logprob of their tokens, the best first.
    stop_token_ids: more tokens that end the output.
    min_p: sample from tokens with at least this share of the largest probability; 0 is off.
    typical_p: sample from the tokens closest to the entropy that have this probability together;
        1 is off.
    repetition_penalty: from 1e-6 to 1e6: divides positive logits, and multiplies others, of tokens
        in the prompt or the output; 1 is off.
    frequency_penalty: subtracted from a token's logit for each occurrence in the output.
    presence_penalty: subtracted from a token's logit if it occurs in the output.
    logit_bias: token id -> number from -100 to 100 that is added to its logit.
    allowed_token_ids: the only tokens allowed in the output; None is all.
    bad_words_ids: forbidden token sequences, as lists of 1 to 16 token ids.
    bad_words: forbidden texts: their tokens never follow one another.
    watermark: watermark the output, for penstock.watermark to detect.
    logprobs: return, for each token of the output, the logprobs of this many (0 to 20) most
        probable tokens and its own, as Completion.top_logprobs.
    prompt_logprobs: the same for the prompt's tokens, as Completion.prompt_logprobs.
    structured_outputs: constraints on the output.
    thinking_token_budget: tokens of reasoning after which it is closed, in conversations with a
        model that reasons; 0 closes it at once. None or -1 is no limit.
    use_beam_search: beam search for n completions instead of sampling; no other parameter that
        changes the choice of tokens is allowed with it. The names are those of transformers.
    beam_width: beams kept after each step, at least n; None is best_of or n.
    length_penalty: finished beams rank by the sum of their logprobs / length^this.
    early_stopping: True ends a search with enough finished beams, False when no better one is
        likely, "never" when none is possible.
    """

    max_tokens: int | None = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] | None = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    best_of: int | None = None
    stop_token_ids: Sequence[int] | None = ()
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default_factory=dict)
    allowed_token_ids: Sequence[int] | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = ()
    bad_words: Sequence[str] | None = ()
    watermark: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
    thinking_token_budget: int | None = None
    use_beam_search: bool = False
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        self._list()
        for name in ("stop", "bad_words"):
            _check_strings(name, getattr(self, name))
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, 2**32)
        _check_int("min_tokens", self.min_tokens, 0, 2**32)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, SEEDS)
        _check_int("n", self.n, 1, 2**32)
        if self.best_of is not None:
            _check_int("best_of", self.best_of, self.n, 2**32)
        self._check_token_ids()
        self._check_beam()
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None:
                _check_int(name, count, 0, 2**32)
        outputs = self.structured_outputs
        if not (outputs is None or isinstance(outputs, StructuredOutputsParams)):
            raise TypeError(
                f"structured_outputs must be StructuredOutputsParams, not {type(outputs).__name__}"
            )
        _core.check_params(self)

    @property
    def choice_count(self) -> int:
        """Choices that the engine generates; the best n of them are returned."""
        return self.n if self.use_beam_search else self.best_of or self.n

    def _list(self) -> None:
        """Converts the given sequences to lists."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        object.__setattr__(self, "stop", stop)
        for name in ("stop", "bad_words", "bad_words_ids", "stop_token_ids"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise TypeError(f"{name} must be a list, not {given!r}")
            object.__setattr__(self, name, [] if given is None else list(given))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", list(self.allowed_token_ids))
        object.__setattr__(self, "logit_bias", self.logit_bias or {})

    def _check_beam(self) -> None:
        if self.beam_width is not None:
            _check_int("beam_width", self.beam_width, self.n, 2**32)
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise ValueError(
                f'early_stopping must be True, False or "never", not {self.early_stopping!r}'
            )
        for name in ("beam_width", "length_penalty", "early_stopping"):
            if getattr(self, name) != getattr(type(self), name) and not self.use_beam_search:
                raise ValueError(f"{name} is only allowed when use_beam_search is True")

    def _check_token_ids(self) -> None:
        words, biases = self.bad_words_ids or (), self.logit_bias or {}
        if not all(words):
            raise ValueError("bad_words_ids must hold lists of at least one token id")
        lists: dict[str, Collection[int]] = {
            "stop_token_ids": self.stop_token_ids or (),
            "logit_bias": biases,
            "allowed_token_ids": self.allowed_token_ids or (),
            "bad_words_ids": [token_id for word in words for token_id in word],
        }
        for name, ids in lists.items():
            for token_id in ids:
                _check_int(name, token_id, 0, 2**32)


@dataclass(frozen=True)
class Logprob:
    """A candidate token of one position.

    logprob: natural log of its probability there, at temperature 1, at least -9999.
    rank: 1 is the most probable; None if the token is not among the requested candidates.
    decoded_token: text of the token by itself.
    """

    logprob: float
    rank: int | None
    decoded_token: str


# By token id, the most probable first.
Logprobs = dict[int, Logprob]


@dataclass(frozen=True)
class ToolCall:
    """A tool call.

    id: for the message with its result. arguments: JSON, truncated where the output is.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Completion:
    """One completion.

    text: without the stop string that ended it. token_ids: the end token included.
    logprobs: natural log of each token's probability, at temperature 1.
    finish_reason: "length", "stop", or "tool_calls" instead of "stop" if there are tool calls.
    prompt_tokens: number of prompt tokens.
    top_logprobs: for each token the most probable candidates and itself, if `logprobs` is set.
    prompt_logprobs: the same for each prompt token, None for the first; if `prompt_logprobs` is
        set. reasoning, tool_calls: the model's reasoning and tool calls, in conversations.
    """

    text: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    prompt_tokens: int
    top_logprobs: list[Logprobs] | None = None
    prompt_logprobs: list[Logprobs | None] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def cumulative_logprob(self) -> float:
        """The sum of the tokens' logprobs."""
        return sum(self.logprobs)


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if not low <= int(value) < high:
        raise ValueError(f"{name} must be at least {low} and below {high}, not {value}")


def _check_strings(name: str, values: list[str]) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{name} must hold strings, not {value!r}")
        if not value:
            raise ValueError(f"{name} must hold strings that are not empty, not {value!r}")
