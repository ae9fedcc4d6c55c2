"""Index keys of pools of tokens (GLM-5-next): what a pooled indexer keeps before it scores."""

from __future__ import annotations

from torch import Tensor

from ..checks import (
    FLOATS,
    INDEX,
    expect,
    expect_contiguous,
    expect_latent,
    expect_rank,
    expect_rows,
)
from ..op import Op
from . import reference

_OP = Op("index_pool", reference.index_pool, mutates=("kv_cache",))


def index_pool(
    k: Tensor,
    gates: Tensor,
    scale: Tensor,
    bias: Tensor,
    eps: float,
    offsets: Tensor,
    slot_mapping: Tensor,
    kv_cache: Tensor,
) -> None:
    """Puts the index key and gate of each token into the cache, and the key of each pool that is
    then complete in place of its last token's key.

    A token's key is layer_norm(k) * scale + bias. A pool is P tokens of a block, from a multiple of
    P on. Its key is the sum of its tokens' keys times weights: in each dimension, the softmax over
    the pool of the tokens' gates, plus the row of `offsets` at the token's place in the pool.

    Args: k and gates [T, D] of one float dtype; both may be views with rows of their own; scale and
        bias [D], any float; offsets [P, D], any float, contiguous; slot_mapping [T] int32, block *
        block_tokens + offset, or -1 for a token that is not written (padding); kv_cache [blocks, 1,
        1, block_tokens, W] contiguous, of k's dtype, block_tokens a multiple of P: the last 2 D
        columns of a token's row are its gates and its key, the others are left alone. Slots are
        distinct. A pool's other tokens are in the cache, or among these.
    Precision: float32 inside; a token's key and gate are rounded once, a pool's key once more.
    Reproducible: the key of a pool does not depend on the steps in which its tokens came.
    Bytes moved: 4 T D elements, and 2 P D for each pool.
    Source: the indexer of GLM-5.3-Flash (Z.ai, 2026), in transformers' glm5_next.
    """
    expect_rank("k", k, "T, D")
    tokens, size = k.shape
    expect("k", k, (tokens, size), FLOATS)
    expect("gates", gates, (tokens, size), (k.dtype,))
    expect("scale", scale, (size,), FLOATS)
    expect("bias", bias, (size,), FLOATS)
    expect_rank("offsets", offsets, "P, D")
    expect("offsets", offsets, (len(offsets), size), FLOATS)
    expect("slot_mapping", slot_mapping, (tokens,), INDEX)
    expect_latent(kv_cache, k.dtype, 2 * size)
    if not len(offsets) or kv_cache.shape[3] % len(offsets):
        raise ValueError(
            f"offsets has {len(offsets)} rows; expected a divisor of {kv_cache.shape[3]}, the "
            "tokens of a block"
        )
    expect_contiguous("offsets", offsets)
    expect_rows("k", k)
    expect_rows("gates", gates)
    _OP.on(k)(k, gates, scale, bias, eps, offsets, slot_mapping, kv_cache)
