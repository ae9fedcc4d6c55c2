"""`penstock quantize`: writes quantized checkpoints, one decoder layer at a time."""

from penstock.quantize.job import quantize
from penstock.quantize.options import METHODS, Options, Report

__all__ = ["METHODS", "Options", "Report", "quantize"]
