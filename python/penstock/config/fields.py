"""Checked access to a config.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.faults import BadModel

QUANTIZATION_FILES = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
# Fields of any config.json that do not change what a model computes, or that others read.
UNUSED = (
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "use_cache",
    "_name_or_path", "auto_map", "initializer_range", "bos_token_id", "eos_token_id",
    "pad_token_id", "attention_dropout", "output_router_logits", "router_aux_loss_coef",
    "quantization_config", "compression_config", "return_dict", "chunk_size_feed_forward",
    "is_encoder_decoder", "id2label", "label2id", "problem_type",
)  # fmt: skip
NEUTRAL: tuple[Any, ...] = (None, False, 0, "", [], {})
MOST = 1 << 31  # no size may be larger: 32-bit indices count it


class _Recorded(Mapping[str, Any]):
    """A mapping that notes which of its fields are read."""

    def __init__(self, raw: Mapping[str, Any], read: set[str]) -> None:
        self._raw = raw
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._raw[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


class Fields:
    """Checked access to the fields of a config.json.

    Raises BadModel, naming the field, where one is missing or has a value of the wrong kind.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._read: set[str] = set()
        self.raw: Mapping[str, Any] = _Recorded(raw, self._read)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns the number under `name`; absent or null gives `default`, or an error without
        one."""
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise BadModel(f"config.json: {name} must be a number, found {value!r}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """As `number`, above 0 and small enough for float32."""
        value = self.number(name, default)
        if not 0 < value < 1e38:
            raise BadModel(f"config.json: {name} must be a number above 0, found {value!r}")
        return float(value)

    def positives(self, name: str) -> tuple[float, ...]:
        """Returns the list of numbers above 0 under `name`."""
        values = self.raw.get(name)
        if not isinstance(values, list):
            raise BadModel(f"config.json: {name} must be a list of numbers, found {values!r}")
        return tuple(Fields({name: value}).positive(name) for value in values)

    def section(self, name: str) -> Fields:
        """Returns the object under `name`."""
        value = self.raw.get(name)
        if not isinstance(value, Mapping):
            raise BadModel(f"config.json: {name} must be an object, found {value!r}")
        return Fields(value)

    def optional(self, name: str) -> float:
        """As `positive`; absent or null gives 0, which stands for none."""
        return 0.0 if self.raw.get(name) is None else self.positive(name)

    def count(self, name: str, default: int | None = None) -> int:
        """As `number`, for a whole number of at least one."""
        value = self.number(name, default)
        if value != int(value) or not 1 <= value < MOST:
            rule = f"a whole number from 1 to {MOST - 1}"
            raise BadModel(f"config.json: {name} must be {rule}, found {value!r}")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Returns the boolean under `name`."""
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadModel(f"config.json: {name} must be true or false, found {value!r}")
        return value

    def require_unset(self, *names: str) -> None:
        """Rejects a model that sets one of `names` to anything but null or false."""
        for name in names:
            value = self.raw.get(name)
            if value not in (None, False):
                raise BadModel(f"config.json: {name} {value!r} is not supported")

    def done(self, *unused: str) -> None:
        """Rejects a model that sets a field which nothing has read, unless its value is neutral.

        `unused` are fields of the family that change nothing in inference.
        """
        known = self._read.union(UNUSED, unused)
        for name in self.raw:
            if name not in known and (value := self.raw[name]) not in NEUTRAL:
                raise BadModel(f"config.json: {name} {value!r} is not supported")

    def require(self, name: str, wanted: Any) -> None:
        """Rejects a model whose `name` is present and not `wanted`: it would be computed
        wrongly."""
        value = self.raw.get(name)
        if value is not None and value != wanted:
            raise BadModel(f"config.json: {name} {value!r} is not supported, only {wanted!r} is")


def _finite(value: float) -> bool:
    """Also accepts an integer of a thousand digits, for which isfinite raises."""
    return -math.inf < value < math.inf


def read_config(directory: Path) -> dict[str, Any]:
    """Returns the parsed config.json of a model directory. Raises BadModel.

    Its quantization_config may come from a file of its own, as AutoGPTQ and AutoAWQ once wrote it.
    """
    path = directory / "config.json"
    if not directory.is_dir():
        raise BadModel(f"model directory {directory} does not exist; check --model")
    if not path.is_file():
        raise BadModel(f"{path} is missing: {directory} is not a model directory in HF format")
    raw = _object(path)
    for name, method in QUANTIZATION_FILES.items():
        if not raw.get("quantization_config") and (directory / name).is_file():
            raw["quantization_config"] = {"quant_method": method, **_object(directory / name)}
    return raw


def _object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadModel(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BadModel(f"{path} must hold a JSON object")
    return raw
