"""Kernels for serving language models: typed functions, each a torch reference and a Triton kernel.

The device of the tensors chooses: CUDA runs Triton, everything else the reference. `use` overrides
the choice for a while (tests, benches).
"""

from . import fusion as _fusion  # noqa: F401  (before anything imports Triton)
from .act_mul import act_mul
from .apply_mask import apply_mask
from .bad_words import bad_words
from .causal_conv import causal_conv
from .channel_scan import channel_scan
from .copy_blocks import copy_blocks
from .expert_mlp import expert_mlp
from .gated_delta_rule import gated_delta_rule
from .gated_head_norm import gated_head_norm
from .head_norm import head_norm
from .index_blocks import index_blocks
from .index_pool import index_pool
from .index_tokens import index_tokens
from .index_write import index_write
from .latent_attention import latent_attention
from .latent_kv_write import latent_kv_write
from .linear import linear
from .norm_linear import norm_linear
from .norm_route import norm_route
from .op import use
from .packed_act_linear import packed_act_linear
from .packed_linear import packed_linear
from .packed_norm_linear import packed_norm_linear
from .paged_decode_attention import paged_decode_attention
from .paged_prefill_attention import paged_prefill_attention
from .process_logits import process_logits
from .rg_lru import rg_lru
from .rms_norm import rms_norm
from .rope_kv_write import rope_kv_write
from .route_experts import route_experts
from .sample import sample
from .selective_scan import selective_scan
from .sinkhorn import sinkhorn
from .top_logprobs import top_logprobs
from .window_sum import window_sum

__all__ = [
    "act_mul",
    "apply_mask",
    "bad_words",
    "causal_conv",
    "channel_scan",
    "copy_blocks",
    "expert_mlp",
    "gated_delta_rule",
    "gated_head_norm",
    "head_norm",
    "index_blocks",
    "index_pool",
    "index_tokens",
    "index_write",
    "latent_attention",
    "latent_kv_write",
    "linear",
    "norm_linear",
    "norm_route",
    "packed_act_linear",
    "packed_linear",
    "packed_norm_linear",
    "paged_decode_attention",
    "paged_prefill_attention",
    "process_logits",
    "rg_lru",
    "rms_norm",
    "rope_kv_write",
    "route_experts",
    "sample",
    "selective_scan",
    "sinkhorn",
    "top_logprobs",
    "use",
    "window_sum",
]
