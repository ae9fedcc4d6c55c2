"""What a decoder-only transformer is, as data. A family reads it from config.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from penstock.faults import BadModel


class Activation(Enum):
    """The nonlinearity of a gated feed-forward layer."""

    SILU = "silu"


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embeddings: `numbers` are the parameters of `kind`, a key of `rope.KINDS`."""

    kind: str
    theta: float
    numbers: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class NormSpec:
    """Root mean square normalisation."""

    eps: float


@dataclass(frozen=True)
class AttentionSpec:
    """Self-attention of one layer. Head counts are those of the whole model, not of one rank."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Factor of the scores before the softmax."""
    rope: RopeSpec
    window: int = 0
    """Sliding window in tokens; 0 = unlimited."""
    qkv_bias: bool = False
    output_bias: bool = False

    def __post_init__(self) -> None:
        """Raises BadModel for sizes that do not fit each other."""
        if self.heads % self.kv_heads:
            raise BadModel(
                f"config.json: num_attention_heads is {self.heads}, not a multiple of "
                f"num_key_value_heads, {self.kv_heads}"
            )
        if self.head_dim % 2:
            raise BadModel(f"config.json: head_dim must be even, found {self.head_dim}")


@dataclass(frozen=True)
class MlpSpec:
    """A gated feed-forward layer."""

    intermediate: int
    activation: Activation = Activation.SILU
    bias: bool = False


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer. Layers with equal specifications launch the same kernels."""

    attention: AttentionSpec
    mlp: MlpSpec


@dataclass(frozen=True)
class Specification:
    """A decoder-only transformer. Sizes are those of the whole model, not of one rank."""

    hidden: int
    vocab: int
    max_positions: int
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    tied: bool
    """Whether the head shares the embedding's matrix."""

    @property
    def windows(self) -> tuple[int, ...]:
        """Each layer's sliding window in tokens; 0 = unlimited."""
        return tuple(layer.attention.window for layer in self.layers)

    @property
    def kv_heads(self) -> int:
        """Key and value heads of every layer."""
        return self.layers[0].attention.kv_heads

    @property
    def head_dim(self) -> int:
        """Elements of a head in every layer."""
        return self.layers[0].attention.head_dim

    @property
    def shared_sizes(self) -> Mapping[str, int]:
        """Sizes that the ranks must be able to share equally, by config.json's names."""
        attention, mlp = self.layers[0].attention, self.layers[0].mlp
        return {
            "num_attention_heads": attention.heads,
            "num_key_value_heads": attention.kv_heads,
            "intermediate_size": mlp.intermediate,
        }

    def with_attention(self, windows: Iterable[int], **changes: Any) -> Specification:
        """Returns a copy with these windows, one per layer, and these fields of all attention."""
        layers = tuple(
            replace(layer, attention=replace(layer.attention, window=window, **changes))
            for layer, window in zip(self.layers, windows, strict=True)
        )
        return replace(self, layers=layers)
