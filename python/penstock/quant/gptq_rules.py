"""Rules of GPTQ checkpoints that give some modules other settings, or exclude them.

GPTQModel writes them as `dynamic`, optimum as `modules_in_block_to_quantize`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.quant.method import LinearMethod
from penstock.quant.methods import Methods
from penstock.quant.settings import Settings


@dataclass(frozen=True)
class Rule:
    """Settings of the modules whose path begins with a match of `pattern`; None = not converted."""

    pattern: re.Pattern[str]
    settings: Mapping[str, Any] | None


@dataclass(frozen=True)
class RuledMethods(Methods):
    """The first rule that matches a module decides; `quantized` is the method of all others."""

    rules: tuple[tuple[re.Pattern[str], LinearMethod], ...] = ()

    def of(self, path: str) -> LinearMethod:
        """The method of the module at a path of the checkpoint."""
        usual = super().of(path)
        if usual is self.plain:
            return usual
        return next((method for pattern, method in self.rules if pattern.match(path)), usual)

    @property
    def formats(self) -> tuple[LinearMethod, ...]:
        """The methods of matrices that have a weight format, and those of all rules."""
        ruled = (method for _, method in self.rules if method is not self.plain)
        return (*super().formats, *ruled)


def read_rules(settings: Settings) -> list[Rule]:
    """The rules of both fields, in the order in which they decide. Raises BadModel."""
    inside = _modules_in_block(settings)
    rules = _dynamic(settings)
    if inside:
        names = "|".join(map(re.escape, inside))
        rules.append(Rule(re.compile(rf"(?!.*\.(?:{names})$)"), None))
    return rules


def _dynamic(settings: Settings) -> list[Rule]:
    """Patterns in GPTQModel's order: "-:" excludes modules, "+:" or nothing gives them settings."""
    found = settings.get("dynamic", {})
    if not isinstance(found, Mapping):
        raise settings.error(f"dynamic must be an object of patterns, found {found!r}")
    rules = []
    for name, changes in found.items():
        if not isinstance(changes, Mapping):
            raise settings.error(f"dynamic.{name} must be an object, found {changes!r}")
        excluded = name.startswith("-:")
        try:
            pattern = re.compile(name[2:] if name.startswith(("-:", "+:")) else name)
        except re.error as error:
            raise settings.error(f"dynamic.{name} is no regular expression: {error}") from error
        rules.append(Rule(pattern, None if excluded else changes))
    return rules


def _modules_in_block(settings: Settings) -> list[str]:
    """The only modules of a block that are quantized, if the field names them."""
    found = settings.get("modules_in_block_to_quantize", [])
    lists = found if isinstance(found, list) else [found]
    names = [name for one in lists for name in (one if isinstance(one, list) else [one])]
    if not all(isinstance(name, str) for name in names):
        raise settings.error(
            f"modules_in_block_to_quantize must be lists of modules, found {found!r}"
        )
    return names
