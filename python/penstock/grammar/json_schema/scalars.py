"""Converts rules of numbers and strings to schemas."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from penstock.grammar.json_schema.expander import search
from penstock.grammar.json_schema.rules import UNBOUNDED, NumberRule, StringRule

EXACT = 2**53  # integers up to here are exact as floats
LEAST = 1e-64  # beside an excluded 0; llguidance nests a group per digit, up to 250
MOST_EXCLUDED = 64  # excluded numbers
MOST_EXCLUDED_TEXT = 4000  # characters
EVERYTHING = ("", ".*", "^", "$", "^.*", ".*$", "(.*)", "(?:)")  # patterns that every text matches


def exact(value: Any) -> bool:
    """Returns whether the backends write a value exactly."""
    if isinstance(value, list):
        return all(map(exact, value))
    if isinstance(value, dict):
        return all(map(exact, value.values()))
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) <= EXACT


def number(rule: NumberRule) -> list[dict[str, Any]]:
    """Returns alternative schemas of a rule."""
    if rule.excluded:
        return _between(rule)
    rule = _without_whole_bound(rule)
    schema: dict[str, Any] = {"type": "integer" if rule.whole else "number"}
    if rule.whole is False and not _no_integer(rule):
        return []
    for key, bound, inward in (
        ("minimum", rule.least, math.inf),
        ("maximum", rule.most, -math.inf),
        ("exclusiveMinimum", rule.above, math.inf),
        ("exclusiveMaximum", rule.below, -math.inf),
    ):
        if bound is not None:
            schema[key] = _representable(bound, inward)
    if rule.multiples:
        step = _least_common(rule.multiples)
        if step.denominator == 1 and rule.whole is None and not schema.keys() - {"type"}:
            schema["type"] = "integer"
        schema["multipleOf"] = _plain(step)
    return [schema]


def _without_whole_bound(rule: NumberRule) -> NumberRule:
    """Returns a rule with an inclusive bound where llguidance would allow an excluded one: it
    does so for a whole bound if the other bound, farther from 0, has the same integer part."""
    low, high = rule.low(), rule.high()
    if rule.whole or low is None or high is None:
        return rule
    if rule.above == low >= 0 and low == math.floor(low) and high < low + 1:
        return replace(rule, above=None, least=_next(low, high))
    if rule.below == high <= 0 and high == math.floor(high) and low > high - 1:
        return replace(rule, below=None, most=-_next(-high, -low))
    return rule


def _next(bound: float, farther: float) -> float:
    """Returns a double shortly after a bound: closer than any number of 15 digits, and far enough
    for llguidance, which may read one as the second double before it. After 0 it would have 324
    digits; the returned one is much closer to 0 than to `farther`."""
    if not bound:
        return max(math.nextafter(0, 1), min(LEAST, farther * 2**-53))
    for _ in range(3):
        bound = math.nextafter(bound, math.inf)
    return bound


def _between(rule: NumberRule) -> list[dict[str, Any]]:
    """Returns the ranges between the excluded numbers."""
    gone = sorted({value for value in rule.excluded if replace(rule, excluded=()).holds(value)})
    if len(gone) > MOST_EXCLUDED:
        return []
    bounds: list[Any] = [None, *gone, None]
    found = []
    for above, below in pairwise(bounds):
        part = replace(rule, excluded=()).meet(NumberRule(above=above, below=below))
        if not part.void() and not _holds_none(part):
            found += number(part)
    return found


def _holds_none(rule: NumberRule) -> bool:
    """Returns whether a rule of integers has no integer within its bounds."""
    if not rule.whole:
        return False
    low = max((math.ceil(b) for b in (rule.least,) if b is not None), default=-math.inf)
    low = max(low, math.floor(rule.above) + 1 if rule.above is not None else low)
    high = min((math.floor(b) for b in (rule.most,) if b is not None), default=math.inf)
    high = min(high, math.ceil(rule.below) - 1 if rule.below is not None else high)
    return low > high


def _no_integer(rule: NumberRule) -> bool:
    return _holds_none(replace(rule, whole=True))


def _representable(bound: float, inward: float) -> float:
    """Returns a bound that a float represents exactly, rounded inwards."""
    if isinstance(bound, float) or abs(bound) <= EXACT:
        return bound
    limit = max(-9.2e18, min(9.2e18, float(bound)))
    if (limit > bound) == (inward < 0) and limit != bound:
        limit = math.nextafter(limit, inward)
    return int(limit)


def _least_common(steps: Iterable[Fraction]) -> Fraction:
    found = None
    for step in steps:
        if found is None:
            found = step
            continue
        over = math.lcm(found.denominator, step.denominator)
        found = Fraction(math.lcm(int(found * over), int(step * over)), over)
    return found or Fraction(1)


def _plain(step: Fraction) -> float:
    return step.numerator if step.denominator == 1 else float(step)


def string(rule: StringRule) -> dict[str, Any] | None:
    """Returns the schema of a rule; None if there is none."""
    patterns = [pattern for pattern in rule.patterns if pattern not in EVERYTHING]
    words: list[str] = [text for text in rule.excluded if _may_be(rule, text)]
    starts: list[str] = []
    for pattern in rule.unmatched:
        literal = _literal(pattern)
        if literal is None:
            return None
        text, whole = literal
        (words if whole else starts).append(text)
    if words or starts:
        if len("".join(words + starts)) > MOST_EXCLUDED_TEXT:
            return None
        patterns.append(others(words, starts))
    schema: dict[str, Any] = {"type": "string"}
    if rule.least:
        schema["minLength"] = rule.least
    if rule.most < UNBOUNDED:
        schema["maxLength"] = rule.most
    more: list[dict[str, Any]] = []
    for key, values in (("pattern", patterns), ("format", list(rule.formats))):
        if values:
            schema[key] = values[0]
            more += [{key: value} for value in values[1:]]
    return {**schema, "allOf": more} if more else schema


def _may_be(rule: StringRule, text: str) -> bool:
    """Returns whether a text would satisfy a rule if it were not excluded."""
    return rule.least <= len(text) <= rule.most and all(
        search(pattern, text) is not False for pattern in rule.patterns
    )


def _literal(pattern: str) -> tuple[str, bool] | None:
    """Returns the text of a pattern of the form `^text` or `^text$`, and whether it must match
    the whole value."""
    found = re.fullmatch(r"\^((?:[^\\.\[\](){}*+?|^$]|\\[^A-Za-z0-9])*)(\$?)", pattern)
    return None if found is None else (re.sub(r"\\(.)", r"\1", found[1]), bool(found[2]))


def others(words: Iterable[str], starts: Iterable[str] = ()) -> str:
    """Returns a pattern of all texts except `words` and those that begin with one of `starts`."""
    root: dict[str, Any] = {}
    for texts, end in ((words, "word"), (starts, "start")):
        for text in texts:
            node = root
            for character in text:
                node = node.setdefault(character, {})
            node[end] = {}
    return f"^(?:{_others(root)})$"


def _others(node: dict[str, Any]) -> str:
    letters = [key for key in node if len(key) == 1]
    parts = [] if "word" in node else [""]
    if letters:
        parts.append(f"[^{''.join(map(_in_class, letters))}][\\s\\S]*")
    else:
        parts.append(r"[\s\S]+")
    for letter in letters:
        if "start" not in node[letter]:
            parts.append(f"{_in_class(letter)}(?:{_others(node[letter])})")
    return "|".join(parts)


def _in_class(letter: str) -> str:
    if letter.isalnum() or letter == "_" or ord(letter) > 127:
        return letter
    return json.dumps(letter)[1:-1] if ord(letter) < 32 else f"\\{letter}"
