"""Schemas as nodes: the draft that each is written in, where its references lead, its keywords."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema_specifications import REGISTRY
from referencing import Registry, Specification
from referencing.jsonschema import (
    DRAFT4,
    DRAFT6,
    DRAFT7,
    DRAFT202012,
    lookup_recursive_ref,
    specification_with,
)

from penstock.grammar.protocol import GrammarRejected

MOST_DEPTH = 100
MOST_NODES = 30_000
ROOT = "urn:penstock:schema"
# What a draft does not know is an annotation there; it is kept if asserted, and never negated.
SINCE_6 = frozenset(("const", "contains", "propertyNames"))
SINCE_7 = frozenset(("if", "then", "else"))
SINCE_2019 = frozenset(("dependentRequired", "dependentSchemas", "unevaluatedItems",
                        "unevaluatedProperties", "minContains", "maxContains"))  # fmt: skip
UNKNOWN: Mapping[str, frozenset[str]] = {
    DRAFT4.name: SINCE_6 | SINCE_7 | SINCE_2019,
    DRAFT6.name: SINCE_7 | SINCE_2019,
    DRAFT7.name: SINCE_2019,
}
OLD = (DRAFT4.name, DRAFT6.name, DRAFT7.name)  # a `$ref` hides what stands beside it


@dataclass(frozen=True)
class Node:
    """One schema."""

    contents: dict[str, Any] | bool
    place: str  # where it was first met
    resolver: Any  # of references in it
    draft: Specification[Any]
    declared: bool  # the schema names its draft

    @property
    def old(self) -> bool:
        """Whether siblings of a `$ref` do not count."""
        return self.declared and self.draft.name in OLD

    def known(self, keyword: str) -> bool:
        """Whether the schema's draft knows a keyword."""
        return not (self.declared and keyword in UNKNOWN.get(self.draft.name, ()))

    def wrong(self, keyword: str, rule: str) -> GrammarRejected:
        """Says that a keyword's value is none."""
        given = json.dumps(self.contents[keyword] if isinstance(self.contents, dict) else None)
        return GrammarRejected(
            f"`{keyword}` (in `{self.place}`) must be {rule}. Given: {given[:64]}"
        )


class Reader:
    """The nodes of one schema, each known by a number."""

    def __init__(self, root: Any) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # what the numbers are of
        self._root = root
        draft, declared = self._draft(root, DRAFT202012, False)
        resource = draft.create_resource(root)
        registry: Registry[Any] = REGISTRY.with_resource(ROOT, resource)
        try:
            resolver = registry.resolver(ROOT).in_subresource(resource)
        except Exception:  # an identifier that is none
            resolver = registry.resolver(ROOT)
        self.dynamic = _dynamic_anchors(root)
        self._booleans: dict[bool, int] = {}
        self.root = self._add(root, Node(root, "#", resolver, draft, declared))

    def child(self, node: Node, contents: Any, place: str) -> int:
        """The number of a schema inside a node, at `place` below it."""
        place = f"{node.place}/{place}"
        if id(contents) in self._numbers and isinstance(contents, dict):
            return self._numbers[id(contents)]
        if not isinstance(contents, dict | bool):
            raise GrammarRejected(
                f"a schema must be an object or a boolean, which `{place}` is not"
            )
        if place.count("/") > MOST_DEPTH:
            raise GrammarRejected(f"the schema is nested more than {MOST_DEPTH} deep")
        draft, declared = self._draft(contents, node.draft, node.declared)
        resolver = node.resolver
        if isinstance(contents, dict) and ("$id" in contents or "id" in contents):
            try:
                resolver = resolver.in_subresource(draft.create_resource(contents))
            except Exception:  # an `id` that is none
                resolver = node.resolver
        return self._add(contents, Node(contents, place, resolver, draft, declared))

    def made(self, node: Node, contents: Any, place: str) -> int:
        """The number of a schema that the rules make up, in the place of a node."""
        self._kept.append(contents)
        return self.child(node, contents, place)

    def target(self, node: Node, keyword: str) -> int:
        """Where a node's reference leads."""
        contents = node.contents
        assert isinstance(contents, dict)
        reference = contents[keyword]
        if not isinstance(reference, str):
            raise node.wrong(keyword, "a string")
        self._check_dynamic(node, keyword, reference)
        try:
            found: Any = node.resolver
            if keyword == "$recursiveRef":
                found = lookup_recursive_ref(found)
            else:
                found = found.lookup(reference)
            contents, resolver = found.contents, found.resolver
        except Exception:
            contents, resolver = _pointed(self._root, reference), node.resolver
        if contents is None:
            raise GrammarRejected(
                f"the `{keyword}` {json.dumps(reference)[:64]} (in `{node.place}`) leads to "
                "nothing in the schema; schemas elsewhere are not fetched"
            )
        if not isinstance(contents, dict | bool):
            raise GrammarRejected(
                f"the `{keyword}` {json.dumps(reference)[:64]} leads to no schema"
            )
        if id(contents) in self._numbers and isinstance(contents, dict):
            return self._numbers[id(contents)]
        draft, declared = self._draft(contents, node.draft, node.declared)
        return self._add(contents, Node(contents, reference[:200], resolver, draft, declared))

    def _check_dynamic(self, node: Node, keyword: str, reference: str) -> None:
        """Dynamic references are kept where they can lead to one place alone."""
        if keyword == "$dynamicRef" and self.dynamic.count(reference.rpartition("#")[2]) > 1:
            raise _unsupported(keyword, node.place)
        if keyword == "$recursiveRef" and self.dynamic.count("$recursiveAnchor") > 1:
            raise _unsupported(keyword, node.place)

    def _add(self, contents: Any, node: Node) -> int:
        if isinstance(contents, bool) and contents in self._booleans:
            return self._booleans[contents]
        number = len(self.nodes)
        if number >= MOST_NODES:
            raise GrammarRejected(f"the schema has more than {MOST_NODES} parts")
        self.nodes.append(node)
        if isinstance(contents, dict):
            self._numbers[id(contents)] = number
        elif isinstance(contents, bool):
            self._booleans[contents] = number
        return number

    def _draft(
        self, contents: Any, otherwise: Specification[Any], declared: bool
    ) -> tuple[Specification[Any], bool]:
        name = contents.get("$schema") if isinstance(contents, dict) else None
        if not isinstance(name, str):
            return otherwise, declared
        try:
            return specification_with(name.rstrip("#")), True
        except Exception:  # a name of the schema's own
            return otherwise, declared


def _unsupported(keyword: str, place: str) -> GrammarRejected:
    return GrammarRejected(f"the schema keyword `{keyword}` (in `{place}`) is not supported")


def _dynamic_anchors(root: Any) -> list[str]:
    found, waiting = [], [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("$dynamicAnchor"), str):
                found.append(value["$dynamicAnchor"])
            if value.get("$recursiveAnchor") is True:
                found.append("$recursiveAnchor")
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return found


def _pointed(root: Any, reference: str) -> Any:
    """What a plain pointer leads to, whatever identifiers say."""
    from urllib.parse import unquote

    if reference != "#" and not reference.startswith("#/"):
        return None
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            return None
    return found
