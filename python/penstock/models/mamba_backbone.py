"""What models have in common whose layers are all Mamba, without attention and feed-forward."""

from __future__ import annotations

from penstock import config
from penstock.config import Fields, LayerSpec, Mamba1Spec, Mamba2Spec, NormSpec, Specification

LAYER, PATH = "backbone.layers.{}.", "blocks.{}.attention"
BACKBONE_NAMES = {
    "backbone.embeddings": "embedding",
    LAYER + "norm": "blocks.{}.attention_norm",
    LAYER + "mixer": PATH,
    LAYER + "mixer.in_proj": PATH + ".inputs",
    LAYER + "mixer.conv1d": PATH + ".convolution",
    LAYER + "mixer.out_proj": PATH + ".output",
    "backbone.norm_f": "norm",
    "lm_head": "head",
}
OLDER_NAMES = {"backbone.embedding.": "backbone.embeddings."}
# Training, how transformers runs the models, and sizes once more. The residual stream has the
# model's dtype, whatever `residual_in_fp32` says of transformers'.
IGNORED = (
    *("time_step_min", "time_step_max", "time_step_floor", "time_step_scale"),
    *("time_step_init_scheme", "rescale_prenorm_residual", "residual_in_fp32"),
    *("use_mambapy", "use_falcon_mambapy", "use_associative_scan", "fused_add_norm"),
    *("chunk_size", "d_inner", "d_model", "n_layer", "pad_vocab_size_multiple"),
)


def read_norm(fields: Fields) -> NormSpec:
    """The norm before each layer."""
    fields.require("rms_norm", True)
    return NormSpec(fields.number("layer_norm_epsilon", 1e-5))


def read_backbone(fields: Fields, mixer: Mamba1Spec | Mamba2Spec) -> Specification:
    """The model with this mixer in each layer."""
    fields.ignore(*IGNORED)
    residual = config.read_residual(fields, norm=read_norm(fields))
    layers = [LayerSpec(mixer, None)] * fields.count("num_hidden_layers")
    return config.read_decoder(fields, layers, residual)
