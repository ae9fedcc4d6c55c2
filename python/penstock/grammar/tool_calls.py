"""Tool calls as a grammar: literal text around documents of the tools' schemas.

The router specifies how the model writes a call. The calls become one expression where outlines
enforces all schemas, else one Lark grammar for llguidance. Either way the schemas are checked like
any other, and calls are completed within the token budget.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.grammar import schema
from penstock.grammar.composite import ForcedPrefixGrammar
from penstock.grammar.growth import MinDocumentTokens, schema_growth
from penstock.grammar.json_schema.emit import normalize
from penstock.grammar.json_schema.keywords import ASSERTIONS
from penstock.grammar.lazy import LazyGrammar
from penstock.grammar.llguidance_backend import WHITESPACE, Growth
from penstock.grammar.opening import Opening, OpeningHead
from penstock.grammar.protocol import CompiledGrammar, GrammarKind, GrammarRejected, GrammarSpec
from penstock.grammar.vocabulary import Vocabulary

MOST_BYTES = 1 << 20  # of the whole text
MOST_EXPRESSION = 32 << 10  # characters; llguidance gets longer ones
MOST_CHOICES = 8  # tools; with at most this many, each token of a name is tried
NOTHING = {"type": "object", "additionalProperties": False}  # arguments of a tool without any


@dataclass(frozen=True)
class Call:
    """A tool and the text around a call of it."""

    name: str
    before: str
    schema: dict[str, Any]  # of its arguments; checked
    after: str


@dataclass(frozen=True)
class Calls:
    """A text of one call, or of one or more calls."""

    begin: str
    between: str
    end: str
    many: bool
    calls: tuple[Call, ...]


def parse(text: str, special_tokens: Mapping[bytes, int]) -> Calls:
    """Parses the router's spec: {"mark", "begin", "between", "end", "many", "calls": [{"name",
    "before", "schema", "after"}]}. A mark of special tokens, by their names, is left out.

    Raises GrammarRejected, naming the tool whose schema is not supported.
    """
    if len(text) > MOST_BYTES:
        raise GrammarRejected(
            f"the tools have {len(text)} bytes; at most {MOST_BYTES} are possible"
        )
    try:
        spec = json.loads(text)
        calls = tuple(
            Call(call["name"], call["before"], _checked(call), call["after"])
            for call in spec["calls"]
        )
        mark = spec.get("mark", "")
        begin = spec["begin"] if mark_tokens(mark, special_tokens) else mark + spec["begin"]
        return Calls(begin, spec["between"], spec["end"], spec["many"], calls)
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise GrammarRejected(f"the tools cannot be read: {error}") from error


def framed(grammar: CompiledGrammar, text: str, vocabulary: Vocabulary) -> CompiledGrammar:
    """Places `grammar`, compiled from the spec `text`, behind its special tokens, or in free text
    (see `opening`)."""
    spec = json.loads(text)
    opened = opening(spec)
    if opened is not None:
        return LazyGrammar(grammar, opened, vocabulary)
    mark = mark_tokens(spec.get("mark", ""), vocabulary.special_tokens)
    return ForcedPrefixGrammar(grammar, mark) if mark else grammar


def mark_tokens(mark: str, special_tokens: Mapping[bytes, int]) -> tuple[int, ...]:
    """Returns the special tokens whose names, one after the other, are `mark`; empty if it has
    other text."""
    rest, tokens = mark.encode(), list[int]()
    while rest:
        name = max(filter(rest.startswith, special_tokens), key=len, default=b"")
        if not name:
            return ()
        tokens.append(special_tokens[name])
        rest = rest[len(name) :]
    return tuple(tokens)


def opening(spec: dict[str, Any]) -> Opening | None:
    """Returns the opening of calls in free text: {"opening": {"mark", "spelt", "heads":
    [{"parts", "spelt"}], "at_start", "again"}}. None if the output consists of calls only."""
    found = spec.get("opening")
    if found is None:
        return None
    mark, spelt, again = (found.get(key, "").encode() for key in ("mark", "spelt", "again"))
    heads = (
        OpeningHead(tuple(part.encode() for part in head["parts"]), head["spelt"].encode())
        for head in found.get("heads", ())
    )
    return Opening(mark, spelt, tuple(heads), found.get("at_start", False), again)


def alternatives(spec: GrammarSpec) -> tuple[GrammarSpec, GrammarSpec] | None:
    """Returns the document allowed instead of the calls, {"document": {"kind", "text",
    "complete"}}, and the calls. None if there is no such document."""
    if spec.kind is not GrammarKind.CALLS:
        return None
    frame = json.loads(spec.text)
    document = frame.pop("document", None)
    if document is None:
        return None
    other = GrammarSpec(GrammarKind(document["kind"]), document["text"], document["complete"])
    return other, replace(spec, text=json.dumps(frame, ensure_ascii=False))


def _checked(call: dict[str, Any]) -> dict[str, Any]:
    found = call["schema"]
    constrained = ASSERTIONS.intersection(found) - {"type", "properties"}
    if not found.get("properties") and not any(found[key] for key in constrained):
        return NOTHING
    try:
        # Arguments must be an object, even if the schema allows other types.
        made: dict[str, Any] = normalize({**found, "type": "object"})
    except GrammarRejected as error:
        raise GrammarRejected(f"the parameters of `{call['name']}`: {error}") from error
    return made


def expression(calls: Calls) -> str | None:
    """Returns one expression of all calls; None if it would not enforce every schema."""
    each = []
    for call in calls.calls:
        document = r"\{\}" if call.schema is NOTHING else schema.expression(call.schema)
        if document is None:
            return None
        each.append(f"{_escaped(call.before)}(?:{document}){_escaped(call.after)}")
    one = f"(?:{'|'.join(each)})"
    more = f"(?:{_escaped(calls.between)}{one})*" if calls.many else ""
    whole = f"{_escaped(calls.begin)}{one}{more}{_escaped(calls.end)}"
    return whole if len(whole) <= MOST_EXPRESSION else None


def _escaped(text: str) -> str:
    return re.sub(r"[\\.+*?()|\[\]{}^$#&~/-]", r"\\\g<0>", text)


def lark(calls: Calls) -> str:
    """Returns a Lark grammar of all calls."""
    more = f"({_quoted(calls.between)} call)*" if calls.many else ""
    names = [f"call_{index}" for index in range(len(calls.calls))]
    lines = [
        _rule("start", _quoted(calls.begin), "call", more, _quoted(calls.end)),
        _rule("call", " | ".join(names)),
    ]
    for index, call in enumerate(calls.calls):
        spacing = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
        document = json.dumps({**call.schema, "x-guidance": spacing})
        before, after = _quoted(call.before), _quoted(call.after)
        lines.append(_rule(names[index], before, f"arguments_{index}", after))
        lines.append(f"arguments_{index}: %json {document}")
    return "\n".join(lines) + "\n"


def _rule(name: str, *parts: str) -> str:
    return f"{name}: {' '.join(part for part in parts if part)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def growth(calls: Calls, vocabulary: Vocabulary) -> Growth:
    """Returns the growth bounds of the calls: those of their schemas and, where there is a
    choice of tools or of one more call, a whole call."""
    each, once, jump, merged = 0, 0, 0, False
    for call in calls.calls:
        opened, word = schema_growth(call.schema, vocabulary)
        after, before = call.after.encode(), (calls.between + call.before).encode()
        each, once = max(each, opened), max(once, word, vocabulary.max_suffix_tokens(before))
        around = vocabulary.max_suffix_tokens(after) + vocabulary.max_suffix_tokens(before)
        jump = max(
            jump, around + MinDocumentTokens(call.schema, vocabulary).tokens_for(call.schema)
        )
        merged |= any(b"}" + after + before[:1] in text for text in vocabulary.texts)
    if not calls.many and len(calls.calls) == 1:
        return Growth(each, once)
    if calls.many and merged:  # a token may end one call and begin another
        each = max(each, jump)
    names = [call.name.encode() for call in calls.calls]
    starts = (name[:size] for name in names for size in range(1, len(name) + 1))
    choices = sum(start in vocabulary.texts for start in starts)
    # A few tokens span the end of a name and the text after it.
    return Growth(each, once, jump, choices + 8 * len(names) if len(names) > MOST_CHOICES else 0)
