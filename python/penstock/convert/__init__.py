"""Conversion of pickles, and of Meta's and Mistral's own checkpoints: `penstock convert`."""

from penstock.convert.job import Report, convert

__all__ = ["Report", "convert"]
