"""The configuration of a model, read from its config.json and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.faults import BadModel

MOST = 1 << 31  # of any size: 32-bit indices

# Required parameters of each kind of RoPE, and the optional ones of YaRN.
ORIGINAL = "original_max_position_embeddings"
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_YARN = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding: `kind` is default, linear, llama3 or yarn; `numbers` are its parameters."""

    kind: str
    theta: float
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer. Sizes are of the whole model, not of one rank."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    norm_eps: float
    max_positions: int
    rope: RopeConfig
    windows: tuple[int, ...]  # sliding window of each layer, in tokens; 0 = unlimited
    tied: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        """Raises BadModel for sizes that do not fit each other."""
        if self.heads % self.kv_heads:
            raise BadModel(
                f"config.json: num_attention_heads is {self.heads}, not a multiple of "
                f"num_key_value_heads, {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise BadModel(f"config.json: head_dim must be even, found {self.head_dim}")


class Fields:
    """Checked access to the fields of a config.json.

    Raises BadModel, naming the field, where one is missing or has a value of the wrong kind.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

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
    """Returns the parsed config.json of a model directory. Raises BadModel."""
    path = directory / "config.json"
    if not directory.is_dir():
        raise BadModel(f"model directory {directory} does not exist; check --model")
    if not path.is_file():
        raise BadModel(f"{path} is missing: {directory} is not a model directory in HF format")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BadModel(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BadModel(f"{path} must hold a JSON object")
    return raw


def read_rope(fields: Fields) -> RopeConfig:
    """Reads RoPE: `rope_theta` + `rope_scaling` or, since transformers 5, `rope_parameters`.

    `original_max_position_embeddings` defaults to the model's maximum, as in transformers.
    """
    raw = fields.raw.get("rope_scaling") or fields.raw.get("rope_parameters") or {}
    if not isinstance(raw, dict):
        raise BadModel(f"config.json: rope_parameters must be an object, found {raw!r}")
    numbers = Fields(raw)
    theta = numbers.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    if theta <= 1:
        raise BadModel(f"config.json: rope_theta must be above 1, found {theta!r}")
    numbers.require("partial_rotary_factor", 1.0)
    fields.require("partial_rotary_factor", 1.0)
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if not isinstance(kind, str) or kind not in _NEEDS:
        raise BadModel(
            f"config.json: rope_type {kind!r} is not supported, only {sorted(_NEEDS)} are"
        )
    read = {name: numbers.positive(name) for name in _NEEDS[kind]}
    for name in _YARN if kind == "yarn" else ():
        if raw.get(name):
            read[name] = numbers.positive(name)
    read["truncate"] = numbers.flag("truncate", True)
    original = numbers if raw.get(ORIGINAL) else fields
    read[ORIGINAL] = original.count(ORIGINAL, fields.count("max_position_embeddings"))
    return RopeConfig(kind, theta, read)
