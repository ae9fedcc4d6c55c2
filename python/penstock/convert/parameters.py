"""params.json of Meta's and Mistral's own checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.faults import BadModel

NEUTRAL: dict[str, tuple[object, ...]] = {
    "max_batch_size": (),
    "max_seq_len": (),
    "model_parallel": (),
    "use_scaled_rope": (),
    "vocab_size": (),
    "ffn_dim_multiplier": (),
    "multiple_of": (),
    "use_biases": (False,),
    "causal": (True,),
    "attn_bias": (False,),
    "model_type": ("transformer",),
}
"""Fields that are not read, and their allowed values; any value where there is none. The shapes of
the tensors give the sizes."""


@dataclass(frozen=True)
class Parameters:
    """The model's sizes. dim: of the hidden state; window: None for full attention; context: the
    longest sequence in the file, None if it has none."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    scaled_rope: bool
    window: int | None
    tied: bool
    context: int | None


def read(path: Path) -> Parameters:
    """Reads params.json. Raises BadModel for a missing field or one that is not supported."""
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadModel(f"{path} cannot be read: {error}") from error
    fields = _Fields(path, dict(raw))
    dim, heads = fields.size("dim"), fields.size("n_heads")
    parameters = Parameters(
        dim,
        fields.size("n_layers"),
        heads,
        fields.size("n_kv_heads", heads),
        fields.size("head_dim", dim // heads),
        float(fields.take("norm_eps", 1e-5)),
        float(fields.take("rope_theta", 10000.0)),
        bool(raw.get("use_scaled_rope", False)),
        fields.window(),
        bool(fields.take("tied_embeddings", False)),
        raw.get("max_seq_len") if isinstance(raw.get("max_seq_len"), int) else None,
    )
    fields.take("hidden_dim", None)  # the tensors' shapes say it
    fields.finish()
    if parameters.heads % parameters.kv_heads:
        raise BadModel(f"{path}: n_heads must be a multiple of n_kv_heads")
    return parameters


class _Fields:
    """Fields that are taken one by one, so that none is ignored."""

    def __init__(self, path: Path, left: dict[str, Any]) -> None:
        self.path, self.left = path, left

    def take(self, name: str, default: object) -> Any:
        found = self.left.pop(name, None)
        return default if found is None else found

    def size(self, name: str, default: int | None = None) -> int:
        found = self.take(name, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise BadModel(f"{self.path}: {name} must be a positive integer, not {found!r}")
        return found

    def window(self) -> int | None:
        found = self.take("sliding_window", None)
        if found is not None and not isinstance(found, int):
            raise BadModel(f"{self.path}: sliding_window {found!r} is not supported: one number is")
        return found

    def finish(self) -> None:
        for name, value in self.left.items():
            allowed = NEUTRAL.get(name)
            if value is None or allowed == () or (allowed is not None and value in allowed):
                continue
            raise BadModel(f"{self.path}: {name} {value!r} is not supported")
