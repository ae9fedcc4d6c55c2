"""Bounds on how many tokens the next token may add to what a document still needs.

llguidance computes what may follow, not what that leads to. Where the completion is not searched
again after a token, these bounds cover whatever the token begins. A literal or a name that has
begun is completed in the model's own tokens, as are the documents after it; for text with a
pattern, each byte counts as a token (see `string_bounds`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any

from penstock.grammar.schema import MOST_SIZE, PLACES, children, literals, nodes
from penstock.grammar.string_bounds import BOUNDS, NO_DISTANCE, StringBounds, merged
from penstock.grammar.vocabulary import Vocabulary

BEGUN = 4  # tokens that a `-`, `\\u` or a character's first byte require
MARKS = 4  # quotes, a colon and a comma around a new value


def schema_growth(schema: Any, vocabulary: Vocabulary) -> tuple[int, int]:
    """Returns the tokens per structural character of a token, and the tokens for its rest.
    Raises GrammarRejected where there is no bound."""
    own = list(nodes(schema))
    sizes = MinDocumentTokens(schema, vocabulary)
    words = [BEGUN, sizes.joined.farthest]
    for node in own:
        words += [vocabulary.max_suffix_tokens(written(value)) for value in literals(node)]
        words.append(max(_digits(node), sizes.string_bounds.distance_of(node).farthest))
        for key in PLACES:
            words += [
                1 + vocabulary.max_suffix_tokens(written(name) + b":") for name in node.get(key, {})
            ]
    each = max((sizes.tokens_for(node) for node in own), default=2) + MARKS
    return each, max(words) + each * any(_undecided(node, schema) for node in own)


def is_endless(schema: Any) -> bool:
    """Returns whether every document of a schema must contain another one of it, so that none
    ends."""
    own, ending = list(nodes(schema)), set[int]()
    while True:
        known = len(ending)
        for node in own:
            if _ends(node, ending, schema):
                ending.add(id(node))
        if len(ending) == known:
            return isinstance(schema, dict) and id(schema) not in ending


def _ends(node: dict[str, Any], ending: set[int], root: Any) -> bool:
    """Returns whether some document of a node ends, given the nodes in `ending`."""

    def known(child: Any) -> bool:
        return not isinstance(child, dict) or id(child) in ending

    must = [*node.get("allOf", [])]
    if "$ref" in node:
        must.append(resolved(root, str(node["$ref"])))
    required, properties = node.get("required", []), node.get("properties", {})
    if isinstance(required, list):
        must += [properties[name] for name in required if name in properties]
    items = node.get("items")
    if _int(node, "minItems"):
        must += items if isinstance(items, list) else [items, *node.get("prefixItems", [])]
    choices = [node[key] for key in ("anyOf", "oneOf") if node.get(key)]
    return all(map(known, must)) and all(any(map(known, choice)) for choice in choices)


def written(value: Any) -> bytes:
    """Returns a value as JSON, approximately as in a document."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def _digits(node: dict[str, Any]) -> int:
    """Returns the digits of a number with bounds; 0 without bounds."""
    given = {key: node[key] for key in BOUNDS if type(node.get(key)) in (int, float)}
    return max((2 + len(_written(key, value)) for key, value in given.items()), default=0)


def _written(key: str, bound: float) -> str:
    """Returns a bound in digits. The zeros before those of the bound nearer to 0 do not count: a
    number that has begun with some of them may go on with a larger digit at once."""
    text = f"{Decimal(str(bound)):f}"
    nearer = bound > 0 if key in ("minimum", "exclusiveMinimum") else bound < 0
    return text.lstrip("-0.") if nearer else text


class MinDocumentTokens:
    """Tokens of a short document of each node, as the completion search finds it: a scalar is
    preferred to a value that may contain another document. MOST_SIZE if none ends."""

    def __init__(self, root: Any, vocabulary: Vocabulary) -> None:
        self.root = root
        self.vocabulary = vocabulary
        self.nodes = list(nodes(root))
        self.string_bounds = StringBounds(vocabulary)
        self.joined = self.string_bounds.whole(root) if merged(self.nodes) else NO_DISTANCE
        self._counts: dict[bytes, int] = {}
        self._users = self._used_by()
        shortest = self._sizes(min)
        self.known = self._sizes(max)
        for node in self.nodes:
            if self.known[id(node)] == MOST_SIZE:  # with recursive alternatives
                self.known[id(node)] = shortest[id(node)]

    def tokens_for(self, node: Any) -> int:
        """Returns the tokens for a node; 2 for anything that is no schema."""
        return self.known.get(id(node), MOST_SIZE) if isinstance(node, dict) else 2

    def _sizes(self, choice: Callable[[Iterable[int]], int]) -> dict[int, int]:
        """Returns the tokens by `id` of a node, with `choice` over alternatives."""
        self.known = {id(node): MOST_SIZE for node in self.nodes}
        # Fixed point over recursive schemas: sizes only decrease.
        waiting = deque(reversed(self.nodes))
        while waiting:
            node = waiting.popleft()
            size = self._tokens(node, choice)
            if size < self.known[id(node)]:
                self.known[id(node)] = size
                waiting += self._users[id(node)]
        return self.known

    def _used_by(self) -> dict[int, list[dict[str, Any]]]:
        """Returns, for each node, the nodes whose sizes depend on it."""
        users: dict[int, list[dict[str, Any]]] = {id(node): [] for node in self.nodes}
        for node in self.nodes:
            used = [
                *children(node),
                resolved(self.root, str(node["$ref"])) if "$ref" in node else None,
            ]
            for other in used:
                if id(other) in users:
                    users[id(other)].append(node)
        return users

    def _tokens(self, node: dict[str, Any], choice: Callable[[Iterable[int]], int]) -> int:
        values = literals(node)
        if values:
            return max(self._spelt(written(value)) for value in values)
        if "$ref" in node:
            return self.tokens_for(resolved(self.root, str(node["$ref"])))
        least = max(2, _digits(node))
        for key in ("anyOf", "oneOf"):
            if node.get(key):
                least += choice(self.tokens_for(child) for child in _likely(node[key]))
        least += sum(self.tokens_for(child) for child in node.get("allOf", []))
        least += sum(self.tokens_for(child) for child in node.get("prefixItems", []))
        items = node.get("items")
        each = (
            sum(map(self.tokens_for, items)) if isinstance(items, list) else self.tokens_for(items)
        )
        least += _int(node, "minItems") * (1 + each)
        spelt = self.string_bounds.distance_of(node).shortest
        least += max(spelt, self.joined.shortest) if spelt else _int(node, "minLength")
        least += _int(node, "minProperties") * (
            8 + self.tokens_for(node.get("additionalProperties"))
        )
        properties, required = node.get("properties", {}), node.get("required", [])
        names = required if isinstance(required, list) else []
        return min(least + sum(self._member(n, properties.get(n)) for n in names), MOST_SIZE)

    def _member(self, name: Any, node: Any) -> int:
        return 2 + self._spelt(written(str(name))) + self.tokens_for(node)

    def _spelt(self, text: bytes) -> int:
        if text not in self._counts:
            tokens = self.vocabulary.shortest_tokenization(text)
            self._counts[text] = len(text) if tokens is None else len(tokens)
        return self._counts[text]


def resolved(root: Any, target: str) -> Any:
    """Resolves a reference; None if its target does not exist."""
    node = root
    for part in target.removeprefix("#").split("/")[1:]:
        if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            node = node.get(part) if isinstance(node, dict) else None
    return node


def _likely(children: list[Any]) -> list[Any]:
    """Returns the scalar alternatives; all if there is none."""
    plain = [child for child in children if _is_scalar(child)]
    return plain or children


def _undecided(node: dict[str, Any], root: Any) -> bool:
    """Returns whether a token within a string or a number may decide between alternatives, such
    as the name of a type in an object of several types."""
    found = set[Any]()
    for kind in _kinds(node, root, set()):
        if kind in found and kind in ("string", "array", "object"):
            return True
        found.add(kind)
    return False


def _kinds(node: Any, root: Any, seen: set[int]) -> Iterator[Any]:
    """Yields the types of all alternatives, each alternative once. Literals have none."""
    if not isinstance(node, dict) or literals(node) or id(node) in seen:
        return
    seen.add(id(node))
    children = [child for key in ("anyOf", "oneOf") for child in node.get(key, [])]
    if "$ref" in node:
        children.append(resolved(root, str(node["$ref"])))
    for child in children:
        yield from _kinds(child, root, seen)
    if not children:
        types = node.get("type")
        yield from types if isinstance(types, list) else [types]


def _is_scalar(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    values = literals(node)
    if values:
        return not any(isinstance(value, dict | list) for value in values)
    kinds = node.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return not any(kind in ("object", "array", None) for kind in kinds)


def _int(node: dict[str, Any], key: str) -> int:
    value = node.get(key, 0)
    return value if isinstance(value, int) and 0 <= value <= MOST_SIZE else 0
