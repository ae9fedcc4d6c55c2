"""Attention over paged KV memory: a step's metadata, and the calls of the kernels."""

from penstock.attention.context import Chunks, Decodes, KvPlaces, StepContext
from penstock.attention.paged import attend

__all__ = ["Chunks", "Decodes", "KvPlaces", "StepContext", "attend"]
