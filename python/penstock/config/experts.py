"""Reads the fields of config.json that mixtures of experts have in common."""

from __future__ import annotations

from typing import Any

from penstock_kernels.route_experts import GroupScore, Routing, Score

from penstock.config.attention_spec import AttentionSpec
from penstock.config.common import read_activation
from penstock.config.feed_forward import MlpSpec, MoeSpec, RouterSpec
from penstock.config.fields import Fields
from penstock.config.specification import LayerSpec
from penstock.faults import BadModel, Unsupported

COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
TOP_K = "num_experts_per_tok"


def read_routing(fields: Fields, **changes: Any) -> Routing:
    """The choice of experts; `changes` are fields that the family reads itself."""
    read = {"top_k": fields.count(TOP_K)}
    try:
        return Routing(**{**read, **changes})
    except ValueError as error:
        raise BadModel(f"config.json: the experts cannot be chosen: {error}") from error


def read_sigmoid_routing(fields: Fields) -> Routing:
    """The choice of experts of DeepSeek-V3 and of families that follow it."""
    return read_routing(
        fields,
        score=Score.SIGMOID,
        renormalise=fields.flag("norm_topk_prob", True),
        scale=fields.positive("routed_scaling_factor", 1.0),
        group_score=GroupScore.TOP2_SUM,
        **_groups(fields),
    )


def read_group_limited_routing(fields: Fields) -> Routing:
    """The choice of experts of DeepSeek-V2: without groups if topk_method is "greedy"."""
    methods = {"greedy": False, "group_limited_greedy": True}
    method = fields.raw.get("topk_method") or "greedy"
    if method not in methods:
        raise Unsupported(
            f"config.json: topk_method {method!r} is not supported, only {sorted(methods)} are"
        )
    groups = _groups(fields)
    return read_routing(
        fields,
        scale=fields.positive("routed_scaling_factor", 1.0),
        **(groups if methods[method] else {}),
    )


def _groups(fields: Fields) -> dict[str, int]:
    """The groups of experts, and those that a token chooses among."""
    groups, kept = fields.count("n_group", 1), fields.count("topk_group", 1)
    if kept > groups:
        raise BadModel(
            f"config.json: {fields.spelled('topk_group')} is {kept}, more than "
            f"{fields.spelled('n_group')}, which is {groups}"
        )
    given = [fields.count(name) for name in COUNTS if fields.raw.get(name) is not None]
    if any(count % groups for count in given):
        raise BadModel(
            f"config.json: {fields.spelled('n_group')} is {groups}, but {given[0]} experts do not "
            f"form {groups} equal groups"
        )
    return {"groups": groups, "kept_groups": kept}


def read_shared_moe(
    fields: Fields, routing: Routing, router: RouterSpec, count: str = "n_routed_experts"
) -> MoeSpec:
    """Experts, and `n_shared_experts` as one layer beside them; `count` as `read_expert_count`
    has its `name`."""
    expert = read_gated(fields, "moe_intermediate_size")
    shared = MlpSpec(expert.intermediate * fields.count("n_shared_experts"), expert.activation)
    top_k = fields.spelled(TOP_K)
    experts = read_expert_count(fields, count)
    return MoeSpec(experts, expert, routing, router, shared, top_k_field=top_k)


def read_corrected_moe(fields: Fields, count: str = "n_routed_experts") -> MoeSpec:
    """Experts of DeepSeek-V3 and of families that follow it: sigmoid routing, with a bias that
    corrects the choice, beside a shared layer; `count` as `read_expert_count` has its `name`."""
    router = RouterSpec(correction=True, float32=True)
    return read_shared_moe(fields, read_sigmoid_routing(fields), router, count)


def read_ungated_moe(fields: Fields, activation: str) -> MoeSpec:
    """Experts without a gate, with sigmoid routing, beside a shared one of a size of its own
    (Nemotron 3); they may read a projection of the token. `activation` names the field."""
    fields.require("n_shared_experts", 1)
    act = read_activation(fields, activation, "relu2")
    expert = MlpSpec(fields.count("moe_intermediate_size"), act, gated=False)
    size, bias = fields.count("moe_shared_expert_intermediate_size"), fields.flag("mlp_bias")
    latent = fields.count("moe_latent_size") if fields.raw.get("moe_latent_size") else 0
    if latent and bias:
        raise Unsupported("config.json: mlp_bias with moe_latent_size is not supported")
    return MoeSpec(
        read_expert_count(fields, "n_routed_experts"),
        expert,
        read_sigmoid_routing(fields),
        RouterSpec(correction=True, float32=True),
        MlpSpec(size, act, bias, gated=False),
        latent=latent,
    )


def read_dense_first(fields: Fields, attention: AttentionSpec, moe: MoeSpec) -> list[LayerSpec]:
    """The layers of a model whose first `first_k_dense_replace` ones have no experts."""
    dense = LayerSpec(attention, read_gated(fields, "intermediate_size"))
    count, first = fields.count("num_hidden_layers"), fields.number("first_k_dense_replace", 1)
    return [dense if index < first else LayerSpec(attention, moe) for index in range(count)]


def read_expert_count(fields: Fields, name: str = "num_experts") -> int:
    """Routed experts of a layer, under any of the names that checkpoints use. `name`: the one of
    the family's own config.json, for the error if there is none."""
    given = [name for name in COUNTS if fields.raw.get(name) is not None]
    counts = {fields.count(name) for name in given or [name]}
    if len(counts) > 1:
        names = " and ".join(map(fields.spelled, given))
        raise BadModel(f"config.json: {names} must be equal, found {sorted(counts)}")
    return counts.pop()


def read_gated(fields: Fields, size: str) -> MlpSpec:
    """A gated feed-forward layer, of an expert or dense; its inner size is the field `size`."""
    return MlpSpec(fields.count(size), read_activation(fields, "hidden_act", "silu"))


def read_sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """Whether each layer has experts: every `decoder_sparse_step`-th one, unless
    `mlp_only_layers` lists it."""
    step, dense = fields.count("decoder_sparse_step", 1), fields.raw.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise BadModel(f"config.json: mlp_only_layers must be a list of layers, found {dense!r}")
    return [(layer + 1) % step == 0 and layer not in dense for layer in range(layers)]


def read_listed_sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """Whether each layer has experts: by `mlp_layer_types`, or else all but the first
    `first_k_dense_replace`."""
    kinds = fields.raw.get("mlp_layer_types")
    first = fields.number("first_k_dense_replace", 1)
    if kinds is None:
        return [layer >= first for layer in range(layers)]
    known = isinstance(kinds, list) and all(kind in ("dense", "sparse") for kind in kinds)
    if not known or len(kinds) != layers:
        raise BadModel(
            f"config.json: mlp_layer_types must hold dense or sparse for each of {layers} layers, "
            f"found {kinds!r}"
        )
    return [kind == "sparse" for kind in kinds]


def read_frequent_sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """As `read_listed_sparse_layers`. Without a list, of the layers behind the first dense ones,
    `moe_layer_freq` is a period, or has 1 for those with experts and 0 for others."""
    sparse, freq = read_listed_sparse_layers(fields, layers), fields.raw.get("moe_layer_freq")
    if fields.raw.get("mlp_layer_types") is not None:
        return sparse
    if not isinstance(freq, list):
        period = fields.count("moe_layer_freq", 1)
        return [one and layer % period == 0 for layer, one in enumerate(sparse)]
    if len(freq) < layers or not all(one in (0, 1) for one in freq):
        raise BadModel(
            f"config.json: moe_layer_freq must hold 0 or 1 for each of {layers} layers, found "
            f"{freq!r}"
        )
    return [one and bool(chosen) for one, chosen in zip(sparse, freq, strict=False)]
