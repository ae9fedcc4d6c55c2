"""Typed access to a node's keywords, in the form of the newest draft."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from penstock.grammar.formats import ALIASES
from penstock.grammar.json_schema.nodes import Node
from penstock.grammar.json_schema.rules import UNBOUNDED, Conjunction
from penstock.grammar.protocol import GrammarRejected

if TYPE_CHECKING:
    from penstock.grammar.json_schema.expander import Expander

ASSERTIONS = frozenset(
    (
        "type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "$ref", "$dynamicRef",
        "$recursiveRef", "properties", "required", "additionalProperties", "patternProperties",
        "minProperties", "maxProperties", "propertyNames", "dependencies", "dependentRequired",
        "dependentSchemas", "unevaluatedProperties", "items", "prefixItems", "additionalItems",
        "minItems", "maxItems", "uniqueItems", "contains", "unevaluatedItems", "minLength",
        "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf",
    )
)  # fmt: skip
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


class Keywords:
    """The keywords of one node that is not a boolean."""

    def __init__(self, expander: Expander, node: Node) -> None:
        assert isinstance(node.contents, dict)
        self.expander = expander
        self.node = node
        self.contents = node.contents

    def __contains__(self, keyword: str) -> bool:
        return keyword in self.contents

    def unsupported(self, keyword: str) -> str:
        """Returns the message for a keyword that cannot be expressed."""
        return f"the schema keyword `{keyword}` (in `{self.node.place}`) is not supported"

    def types(self) -> list[str] | None:
        """Returns the names in `type`; None if all are possible."""
        if "type" not in self:
            return None
        given = self.contents["type"]
        names = given if isinstance(given, list) else [given]
        if not names or "any" in names:  # as draft 3 had it
            return None
        for name in names:
            if name not in TYPES:
                raise self.node.wrong("type", f"one or more of {', '.join(TYPES)}")
        return names

    def values(self) -> list[Any] | None:
        """Returns the values in `enum`; None if there are none."""
        found = None
        if "enum" in self:
            found = self.contents["enum"]
            if not isinstance(found, list):
                raise self.node.wrong("enum", "a list")
        return found

    def count(self, keyword: str) -> int | None:
        """Returns a whole number of 0 or more."""
        if keyword not in self:
            return None
        given = self.contents[keyword]
        if isinstance(given, bool) or not isinstance(given, int | float) or given < 0:
            raise self.node.wrong(keyword, "a whole number of 0 or more")
        if given != math.floor(given):
            raise self.node.wrong(keyword, "a whole number of 0 or more")
        return min(int(given), UNBOUNDED)

    def number(self, keyword: str) -> float | None:
        """Returns a number. Draft 4's exclusive bounds are booleans."""
        if keyword not in self:
            return None
        given = self.contents[keyword]
        if isinstance(given, bool) and keyword.startswith("exclusive"):
            plain = keyword.replace("exclusiveM", "m")
            return self.number(plain) if given else None
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise self.node.wrong(keyword, "a number")
        return given

    def step(self) -> Fraction | None:
        """Returns `multipleOf`."""
        given = self.number("multipleOf")
        if given is None:
            return None
        if given <= 0:
            raise self.node.wrong("multipleOf", "more than 0")
        return Fraction(str(given))

    def text(self, keyword: str) -> str | None:
        """Returns a string."""
        if keyword not in self:
            return None
        if not isinstance(self.contents[keyword], str):
            raise self.node.wrong(keyword, "a string")
        return str(self.contents[keyword])

    def format(self) -> str | None:
        """Returns the name in `format`, as in the newest draft; None if there is none."""
        name = self.contents.get("format")
        return ALIASES.get(name, name) if isinstance(name, str) else None

    def referred(self) -> list[int]:
        """Returns the numbers of the schemas that the node references."""
        target = self.expander.reader.target
        return [target(self.node, keyword) for keyword in REFERENCES if keyword in self]

    def schema(self, keyword: str, holds: bool = True) -> Conjunction:
        """Returns the conjunction that the schema in a keyword holds, or does not."""
        return self._holding(self.contents[keyword], keyword, holds)

    def schemas(self, keyword: str) -> list[int]:
        """Returns the numbers of a list of schemas."""
        given = self.contents.get(keyword, [])
        if not isinstance(given, list):
            raise GrammarRejected(f"`{keyword}` (in `{self.node.place}`) must be a list")
        return [self._number(each, f"{keyword}/{i}") for i, each in enumerate(given)]

    def members(self, keyword: str) -> dict[str, Any]:
        """Returns the members of an object."""
        given = self.contents.get(keyword, {})
        if not isinstance(given, dict):
            raise GrammarRejected(f"`{keyword}` (in `{self.node.place}`) must be an object")
        return given

    def named(self, keyword: str) -> dict[str, int]:
        """Returns the numbers of schemas by name."""
        members = self.members(keyword)
        return {name: self._number(each, f"{keyword}/{name}") for name, each in members.items()}

    def required(self) -> list[str]:
        """Returns the names of required members; in draft 3 the members themselves say so."""
        given = self.contents.get("required", [])
        if isinstance(given, bool):
            given = []
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise self.node.wrong("required", "a list of strings")
        inner = (
            name
            for name, each in self.members("properties").items()
            if isinstance(each, dict) and each.get("required") is True
        )
        return [*given, *inner]

    def dependencies(self) -> list[tuple[str, str, Any]]:
        """Returns (keyword, name, required names or schema) of each dependency."""
        found = []
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, dependency in self.members(keyword).items():
                if keyword == "dependencies" and isinstance(dependency, str):
                    dependency = [dependency]
                if isinstance(dependency, list) and not all(
                    isinstance(each, str) for each in dependency
                ):
                    raise self.node.wrong(keyword, "lists of names, or schemas")
                found.append((keyword, name, dependency))
        return found

    def dependent(self, keyword: str, name: str, dependency: Any) -> int:
        """Returns the number of the schema of a dependency."""
        return self._number(dependency, f"{keyword}/{name}")

    def items(self) -> tuple[list[int], Conjunction | None, str]:
        """Returns the schemas of the first items, that of the other items (None if there is
        none), and the keyword of the latter."""
        rest: Conjunction | None = None
        listed = isinstance(self.contents.get("items"), list)
        key = "additionalItems" if listed else "items"
        first = self.schemas("items") if listed else []
        if "prefixItems" in self and not listed and not self._before_2020():
            first = self.schemas("prefixItems")
        if key in self:
            rest = self.schema(key)
        return first, rest, key

    def _before_2020(self) -> bool:
        node = self.node
        return node.old or (node.declared and node.draft.name.endswith("2019-09"))

    def _number(self, contents: Any, place: str) -> int:
        return self.expander.reader.child(self.node, contents, place)

    def _holding(self, contents: Any, place: str, holds: bool) -> Conjunction:
        return self.expander.holding(self._number(contents, place), holds)
