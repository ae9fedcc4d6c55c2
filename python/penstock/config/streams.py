"""Several residual streams in place of one, as data."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.fields import Fields
from penstock.faults import BadModel


@dataclass(frozen=True)
class StreamsSpec:
    """Residual streams of a token (hyper-connections). A layer reads a weighted sum of them, and
    adds its output to each, times a weight of that stream. Both weights follow from all streams.
    Norms are as in PRE."""

    count: int
    factor: float
    """Of the sigmoids that are the weights of outputs."""
    least: float
    """What is added to each weight."""


@dataclass(frozen=True)
class AltUpSpec:
    """Several residual streams: each layer computes one and predicts the others (Gemma 3n). Beside
    attention is a layer of low rank."""

    count: int
    active: int
    """The stream that layers compute."""
    scaled: bool
    """Whether learned factors scale the stream that embeddings per layer read."""
    laurel_rank: int
    """Of the layer beside attention."""


def read_streams(fields: Fields) -> StreamsSpec:
    """The streams, as Hunyuan 4 spells them. Raises BadModel for weights below 0."""
    least = fields.number("hc_eps", 1e-6)
    if least < 0:
        raise BadModel(f"config.json: hc_eps must be at least 0, found {least!r}")
    return StreamsSpec(fields.count("hc_mult", 4), fields.positive("hc_magnitude", 2.0), least)


def read_altup(fields: Fields) -> AltUpSpec:
    """The residual streams of Gemma 3n, and the rank of its layer beside attention."""
    streams, active = fields.count("altup_num_inputs"), int(fields.number("altup_active_idx"))
    if not 0 <= active < streams:
        raise BadModel(f"config.json: altup_active_idx {active} is none of {streams} streams")
    scaled, rank = fields.flag("altup_correct_scale"), fields.count("laurel_rank")
    return AltUpSpec(streams, active, scaled, rank)
