"""Attention over paged KV memory: a step's metadata, and the calls of the kernels."""

from penstock.attention.context import Chunks, Decodes, StepContext
from penstock.attention.paged import attend

__all__ = ["Chunks", "Decodes", "StepContext", "attend"]
