"""Schemas as nodes: their draft, their place, and the targets of their references."""

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
# A keyword newer than the draft is an annotation there; it is enforced if asserted, and never
# negated.
SINCE_6 = frozenset(("const", "contains", "propertyNames"))
SINCE_7 = frozenset(("if", "then", "else"))
SINCE_2019 = frozenset(("dependentRequired", "dependentSchemas", "unevaluatedItems",
                        "unevaluatedProperties", "minContains", "maxContains"))  # fmt: skip
UNKNOWN: Mapping[str, frozenset[str]] = {
    DRAFT4.name: SINCE_6 | SINCE_7 | SINCE_2019,
    DRAFT6.name: SINCE_7 | SINCE_2019,
    DRAFT7.name: SINCE_2019,
}
OLD = (DRAFT4.name, DRAFT6.name, DRAFT7.name)  # a `$ref` hides its siblings


@dataclass(frozen=True)
class Node:
    """One schema."""

    contents: dict[str, Any] | bool
    place: str  # the first path to it
    resolver: Any  # of references in it
    draft: Specification[Any]
    declared: bool  # the schema names its draft

    @property
    def old(self) -> bool:
        """Whether siblings of a `$ref` are ignored."""
        return self.declared and self.draft.name in OLD

    def known(self, keyword: str) -> bool:
        """Returns whether the schema's draft knows a keyword."""
        return not (self.declared and keyword in UNKNOWN.get(self.draft.name, ()))

    def wrong(self, keyword: str, rule: str) -> GrammarRejected:
        """Returns the error for an invalid value of a keyword."""
        given = json.dumps(self.contents[keyword] if isinstance(self.contents, dict) else None)
        return GrammarRejected(
            f"`{keyword}` (in `{self.place}`) must be {rule}. Given: {given[:64]}"
        )


class Reader:
    """The nodes of one schema, addressed by number."""

    def __init__(self, root: Any) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # keeps made-up schemas alive: `_numbers` uses their ids
        self._root = root
        draft, declared = self._draft(root, DRAFT202012, False)
        resource = draft.create_resource(root)
        registry: Registry[Any] = REGISTRY.with_resource(ROOT, resource)
        try:
            resolver = registry.resolver(ROOT).in_subresource(resource)
        except Exception:  # an invalid identifier
            resolver = registry.resolver(ROOT)
        self.dynamic = _dynamic_anchors(root)
        self._booleans: dict[bool, int] = {}
        self.root = self._add(root, Node(root, "#", resolver, draft, declared))

    def child(self, node: Node, contents: Any, place: str) -> int:
        """Returns the number of a schema inside a node, at `place` below it."""
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
            except Exception:  # an invalid `id`
                resolver = node.resolver
        return self._add(contents, Node(contents, place, resolver, draft, declared))

    def made(self, node: Node, contents: Any, place: str) -> int:
        """Returns the number of a schema made up by the rules, at the place of a node."""
        self._kept.append(contents)
        return self.child(node, contents, place)

    def target(self, node: Node, keyword: str) -> int:
        """Returns the number of the target of a node's reference."""
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
                f"the `{keyword}` {json.dumps(reference)[:64]} (in `{node.place}`) has no target "
                "in the schema; other schemas are not fetched"
            )
        if not isinstance(contents, dict | bool):
            raise GrammarRejected(
                f"the target of the `{keyword}` {json.dumps(reference)[:64]} is not a schema"
            )
        if id(contents) in self._numbers and isinstance(contents, dict):
            return self._numbers[id(contents)]
        draft, declared = self._draft(contents, node.draft, node.declared)
        return self._add(contents, Node(contents, reference[:200], resolver, draft, declared))

    def _check_dynamic(self, node: Node, keyword: str, reference: str) -> None:
        """Rejects dynamic references with more than one possible target."""
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
        except Exception:  # not a known draft
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
    """Resolves a plain JSON pointer, whatever the identifiers are."""
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
