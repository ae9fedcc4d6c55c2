"""How linear weights are stored and multiplied. Layers own sharding, methods own formats."""

from penstock.quant.method import LinearMethod, WeightTensor
from penstock.quant.unquantized import Unquantized

__all__ = ["LinearMethod", "Unquantized", "WeightTensor"]
