"""The layer of Qwen4-Exp, and the names of its tensors in checkpoints."""

from __future__ import annotations

from torch import Tensor

from penstock.config import NgramSpec, Specification
from penstock.layers import Build, NgramLayer, Residual, StreamBlock
from penstock.layers.attention import StepContext

LAYER, BLOCK = "model.layers.{}.", "blocks.{}."
MIX = {"hc_norm": "norm", "input_mix_weight_down": "narrow", "input_mix_weight_up": "widen"}
INDEXER = {"index_qk_proj": "matrix", "q_layernorm": "query_norm", "k_layernorm": "key_norm"}
NGRAMS = {
    "ple_embedding.ngram_embedding.shard_{}": "table.parts.{}",
    "key_proj": "key",
    "value_proj": "value",
    "norm_key": "key_norm",
    "norm_query": "query_norm",
    "norm_conv": "value_norm",
    "conv1d": "convolution",
}
BELOW = {
    "self_attn.indexer.": ("attention.indexer.", INDEXER),
    "ple.": ("ngrams.", NGRAMS),
    "attn_hyper_connection.": ("attention_streams.mix.", MIX),
    "mlp_hyper_connection.": ("mlp_streams.mix.", MIX),
}
NAMES = {
    f"{LAYER}{theirs}{name}": f"{BLOCK}{ours}{path}"
    for theirs, (ours, names) in BELOW.items()
    for name, path in names.items()
}
NAMES |= {
    f"{LAYER}{theirs}_hyper_connection.block_inject_weight": f"{BLOCK}{ours}_streams.inject"
    for theirs, ours in (("attn", "attention"), ("mlp", "mlp"))
}
NAMES |= {f"model.hyper_connection_mixer.{name}": f"streams.mix.{p}" for name, p in MIX.items()}
# Hashes follow from config.json.
STORED_HASHES = r".*\.ple_embedding\.(layer_multipliers|ngram_heads_(vocab_sizes|offsets))"


class Qwen4ExpBlock(StreamBlock):
    """A decoder layer before which n-grams may be added to the streams."""

    def __init__(self, spec: Specification, build: Build, index: int) -> None:
        layer = spec.block_layers[index]
        super().__init__(spec, build, index, layer)
        before = spec.layers[layer - 1] if layer else None
        self.ngrams: NgramLayer | None = None
        if before is not None and isinstance(before.attention, NgramSpec):
            ngrams = build.below(f"blocks.{index}.ngrams"), spec.residual, before.attention
            self.ngrams = NgramLayer(*ngrams, layer - 1, spec.vocab)
            self.kind = (before, *self.kind)

    def __call__(
        self, residual: Residual, context: StepContext, rows: Tensor | None = None
    ) -> Residual:
        """As `StreamBlock`."""
        if self.ngrams is not None:
            residual = residual._replace(x=residual.x + self.ngrams(residual.x, context))
        return super().__call__(residual, context, rows)
