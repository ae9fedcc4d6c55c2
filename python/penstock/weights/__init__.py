"""Model weights: from safetensors files to the tensors of the layers, strictly."""

from penstock.weights.files import Checkpoint, Shapes
from penstock.weights.form import (
    Alternating,
    AnyOf,
    Blocks,
    BlocksOfHeads,
    FirstRows,
    Flat,
    FlatBlocks,
    Form,
    HeadGroups,
    Merged,
    Transposed,
    UnitRows,
)
from penstock.weights.load import Stage, load_weights
from penstock.weights.names import HeadNames, Names
from penstock.weights.target import Target

__all__ = [
    "Alternating",
    "AnyOf",
    "Blocks",
    "BlocksOfHeads",
    "Checkpoint",
    "FirstRows",
    "Flat",
    "FlatBlocks",
    "Form",
    "HeadGroups",
    "HeadNames",
    "Merged",
    "Names",
    "Shapes",
    "Stage",
    "Target",
    "Transposed",
    "UnitRows",
    "load_weights",
]
