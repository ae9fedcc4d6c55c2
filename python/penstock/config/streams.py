"""Several residual streams in place of one (hyper-connections), as data."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.fields import Fields
from penstock.faults import BadModel


@dataclass(frozen=True)
class StreamsSpec:
    """Residual streams of a token. A layer reads a weighted sum of them, and adds its output to
    each, times a weight of that stream. Both weights follow from all streams."""

    count: int
    factor: float
    """Of the sigmoids that are the weights of outputs."""
    least: float
    """What is added to each weight."""


def read_streams(fields: Fields) -> StreamsSpec:
    """The streams, as Hunyuan 4 spells them. Raises BadModel for weights below 0."""
    least = fields.number("hc_eps", 1e-6)
    if least < 0:
        raise BadModel(f"config.json: hc_eps must be at least 0, found {least!r}")
    return StreamsSpec(fields.count("hc_mult", 4), fields.positive("hc_magnitude", 2.0), least)
