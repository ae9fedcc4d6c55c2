"""What a model is, read from its config.json once and checked while reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.faults import BadModel


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


class Fields:
    """Checked access to a config.json that some tool has written.

    Raises BadModel, naming the field, where one is missing or has a value of the wrong kind.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def number(self, name: str, default: float | None = None) -> float:
        """The number under `name`; absent or null gives `default`, or an error without one."""
        value = self.raw.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadModel(f"config.json: {name} must be a number, found {value!r}")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """As `number`, for a whole number of at least one."""
        value = self.number(name, default)
        if value != int(value) or value < 1:
            raise BadModel(f"config.json: {name} must be a whole number >= 1, found {value!r}")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """The boolean under `name`."""
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadModel(f"config.json: {name} must be true or false, found {value!r}")
        return value

    def require(self, name: str, wanted: Any) -> None:
        """Refuses a model whose `name` is present and not `wanted`: we would compute it wrongly."""
        value = self.raw.get(name)
        if value is not None and value != wanted:
            raise BadModel(f"config.json: {name} {value!r} is not supported, only {wanted!r} is")


def read_config(directory: Path) -> dict[str, Any]:
    """The parsed config.json of a model directory. Raises BadModel."""
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
    """RoPE, spelled `rope_theta` + `rope_scaling` or, since transformers 5, `rope_parameters`.

    `original_max_position_embeddings` falls back to the model's maximum, as transformers has it.
    """
    raw = fields.raw.get("rope_scaling") or fields.raw.get("rope_parameters") or {}
    if not isinstance(raw, dict):
        raise BadModel(f"config.json: rope_parameters must be an object, found {raw!r}")
    numbers = Fields(raw)
    theta = numbers.number("rope_theta", fields.number("rope_theta", 10000.0))
    numbers.require("partial_rotary_factor", 1.0)
    fields.require("partial_rotary_factor", 1.0)
    kind = raw.get("rope_type") or raw.get("type") or "default"
    needs = {"linear": ("factor",), "yarn": ("factor",), "default": ()}
    needs["llama3"] = ("factor", "low_freq_factor", "high_freq_factor")
    if kind not in needs:
        raise BadModel(
            f"config.json: rope_type {kind!r} is not supported, only {sorted(needs)} are"
        )
    for name in needs[kind]:
        numbers.number(name)
    original = raw.get("original_max_position_embeddings")
    original = original or fields.raw.get("original_max_position_embeddings")
    filled = {**raw, "original_max_position_embeddings": original}
    if not original:
        filled["original_max_position_embeddings"] = fields.count("max_position_embeddings")
    return RopeConfig(kind, float(theta), filled)
