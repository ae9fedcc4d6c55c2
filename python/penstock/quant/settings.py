"""The fields of a quantization_config: all are read, or refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.faults import BadModel


class Settings:
    """Reads fields, and knows those that are left."""

    def __init__(self, config: Mapping[str, Any], where: str = "quantization_config") -> None:
        """`where` is the path of the object in config.json, for errors."""
        self._config = config
        self._where = where
        self._read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """The field as it is; null counts as absent."""
        self._read.add(name)
        value = self._config.get(name)
        return default if value is None else value

    def choice(self, name: str, allowed: Iterable[Any], default: Any = None) -> Any:
        """A field that has one of a few values. Raises BadModel for others."""
        value, known = self.get(name, default), list(allowed)
        if not any(value == one and type(value) is type(one) for one in known):
            shown = ", ".join(map(repr, known))
            raise self.error(f"{name} {value!r} is not supported; supported: {shown}")
        return value

    def below(self, name: str) -> Settings:
        """The object in a field. Raises BadModel if there is none."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise self.error(f"{name} must be an object, found {value!r}")
        return Settings(value, f"{self._where}.{name}")

    def names(self) -> list[str]:
        """The fields that there are."""
        return list(self._config)

    def skip(self, *names: str) -> None:
        """Fields that change nothing for inference with activations of 16 bits."""
        self._read.update(names)

    def done(self) -> None:
        """Raises BadModel for a field that was not read, unless it is null, false or empty."""
        for name, value in self._config.items():
            if name not in self._read and value not in (None, False, [], {}, "", 0):
                raise self.error(f"{name} {value!r} is not supported")

    def error(self, text: str) -> BadModel:
        """An error about one of the fields."""
        return BadModel(f"config.json: {self._where}.{text}")
