"""Model weights: from safetensors files to the tensors of the layers, strictly."""

from penstock.weights.files import Checkpoint
from penstock.weights.load import checkpoint_names, load_weights
from penstock.weights.target import Target

__all__ = ["Checkpoint", "Target", "checkpoint_names", "load_weights"]
