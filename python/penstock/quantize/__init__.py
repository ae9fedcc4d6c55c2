"""`penstock quantize`: writes quantized checkpoints, one decoder layer at a time."""

from penstock.quantize.job import quantize
from penstock.quantize.options import METHODS, Job, Options, Report

__all__ = ["METHODS", "Job", "Options", "Report", "quantize"]
