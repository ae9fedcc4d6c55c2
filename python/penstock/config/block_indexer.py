"""Reads the choice of blocks that a query attends to from config.json, as Qwen4-Exp and MiniMax-M3
spell it."""

from __future__ import annotations

from dataclasses import replace

from penstock.config.attention_spec import AttentionSpec, BlockIndexerSpec, NormSpec
from penstock.config.fields import Fields
from penstock.faults import BadModel, Unsupported


def read_block_indexer(fields: Fields, norm: NormSpec) -> BlockIndexerSpec:
    """The choice of blocks. Raises BadModel."""
    fields.require("indexer_kv_heads", 1)
    budget, block = fields.count("indexer_budget"), fields.count("indexer_compress_ratio")
    if budget % block:
        raise BadModel(
            f"config.json: indexer_budget is {budget}, not a multiple of indexer_compress_ratio, "
            f"{block}"
        )
    return BlockIndexerSpec(
        heads=fields.count("indexer_n_heads"),
        head_dim=fields.count("indexer_head_dim"),
        block=block,
        top_k=budget // block,
        norm=norm,
    )


def read_head_block_indexer(fields: Fields, norm: NormSpec, kv_heads: int) -> BlockIndexerSpec:
    """The choice of blocks of each of `kv_heads` KV heads. Raises BadModel."""
    heads = fields.count("index_n_heads")
    top_k, recent = fields.count("index_topk_blocks"), fields.count("index_local_blocks")
    if heads != kv_heads:
        raise Unsupported(
            f"config.json: index_n_heads {heads} is not supported, only {kv_heads}, as "
            "num_key_value_heads, is"
        )
    if recent > top_k:
        raise BadModel(
            f"config.json: index_local_blocks is {recent}, above index_topk_blocks, {top_k}"
        )
    return BlockIndexerSpec(
        heads=heads,
        head_dim=fields.count("index_head_dim"),
        block=fields.count("index_block_size"),
        top_k=top_k,
        norm=norm,
        recent=recent,
    )


def with_block_indexer(attention: AttentionSpec, indexer: BlockIndexerSpec) -> AttentionSpec:
    """Returns attention to chosen blocks; the indexer's angles are those of attention. Raises
    BadModel."""
    assert attention.rope is not None
    rotated = attention.rope.dims(attention.head_dim)
    if rotated > indexer.head_dim:
        raise BadModel(
            f"config.json: {rotated} dimensions of a head rotate, more than an index key has, "
            f"{indexer.head_dim}"
        )
    return replace(attention, block_indexer=indexer)
