"""How linear weights are stored and multiplied. Layers own sharding, methods own formats."""

from penstock.quant.method import LinearMethod, Stored
from penstock.quant.plain import Plain

__all__ = ["LinearMethod", "Plain", "Stored"]
