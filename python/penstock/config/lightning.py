"""Reads lightning attention from config.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.config.attention_spec import NormSpec
from penstock.config.common import read_attention
from penstock.config.fields import Fields
from penstock.config.recurrent_spec import LightningSpec

Slopes = Callable[[int], Sequence[float]]
"""From the number of heads to what each head's state decays by in the first layer."""


def falling_slopes(heads: int) -> list[float]:
    """Returns 2 ** (-8 i / heads) for i from 1 to `heads`. `alibi_slopes` has others where
    `heads` is no power of two."""
    return [2 ** (-8 * (head + 1) / heads) for head in range(heads)]


def read_lightning(fields: Fields, slopes: Slopes, layer: int) -> LightningSpec:
    """Lightning attention of layer `layer`. Decays fall from the first layer to the last one, where
    they are nearly 0, as in MiniMax-Text-01 (arXiv:2501.08313). The published code has no 1e-5 in
    the divisor: of n layers, the factors differ by less than 1e-5 / n."""
    fields.require("hidden_act", "silu")  # of queries, keys and values
    sizes = read_attention(fields, None)
    factor = 1 - layer / (fields.count("num_hidden_layers") - 1 + 1e-5) + 1e-5
    decays = tuple(factor * slope for slope in slopes(sizes.heads))
    norm = NormSpec(1e-6)  # whatever rms_norm_eps is
    return LightningSpec(sizes.heads, sizes.head_dim, norm, decays)
