"""The specification of feed-forward layers, dense and with experts, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from penstock_kernels.expert_mlp import Activation as ExpertActivation
from penstock_kernels.expert_mlp.experts import CAP
from penstock_kernels.route_experts import Routing

from penstock.faults import BadModel, Unsupported


class Activation(Enum):
    """The nonlinearity of a feed-forward layer."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU = "gelu"
    RELU = "relu"
    RELU_SQUARED = "relu_squared"
    XIELU = "xielu"
    """With numbers that each layer has learned."""
    CLAMPED_SWIGLU = "clamped_swiglu"
    """min(g, 7) sigmoid(1.702 min(g, 7)) (1 + clamp(u, -7, 7)), not act(g) * u."""
    SOFTCAPPED_SILU = "softcapped_silu"
    """softcap(g, 4) * sigmoid(g) * softcap(u, 25), of softcap(x, c) = c tanh(x / c). Experts alone
    have it (Inkling 2)."""
    LIMITED_SILU = "limited_silu"
    """silu(min(g, 10)) * clamp(u, -10, 10)."""


_WITHOUT_GATE = (Activation.RELU, Activation.RELU_SQUARED, Activation.XIELU)


@dataclass(frozen=True)
class MlpSpec:
    """A feed-forward layer: down(act(gate(x)) * up(x)), or down(act(up(x))) if not `gated`."""

    intermediate: int
    activation: Activation = Activation.SILU
    bias: bool = False
    gated: bool = True
    gate_scale: float = 1.0
    """Factor of the gate before the activation."""
    output_scale: float = 1.0
    sparsity: float = 0.0
    """Share of normally distributed gates that a threshold removes; what exceeds it is activated
    (Gemma 3n)."""
    limit: float = 0.0
    """Bound from above of activated gates, and of ups on both sides; 0 = none. Experts have one
    bound alone (Step 3.5)."""

    def __post_init__(self) -> None:
        """Raises BadModel for a gate that has no implementation."""
        if self.gated and self.activation in _WITHOUT_GATE:
            raise Unsupported(f"config.json: a gate with {self.activation.value} is not supported")

    @property
    def of_experts(self) -> str:
        """What the kernels for experts call the activation. Raises BadModel for a bound that they
        do not know."""
        if not self.limit:
            return self.activation.value
        if self.limit != CAP or self.activation is not Activation.SILU:
            raise Unsupported(
                f"config.json: experts whose activated gates have the bound {self.limit:g} are not "
                f"supported, only with SiLU and {CAP:g}"
            )
        return ExpertActivation.CAPPED_SILU.value


class ExpertStorage(Enum):
    """How a checkpoint stores the matrices of a layer's experts."""

    SEPARATE = "separate"
    """Gate, up and down of each expert are tensors of their own."""
    STACKED = "stacked"
    """A tensor holds a matrix of all experts, [experts, outputs, inputs]; gates precede ups."""
    STACKED_PARTS = "stacked_parts"
    """As STACKED, but gates and ups have a tensor each."""
    TRANSPOSED = "transposed"
    """As STACKED, but [experts, inputs, outputs]."""
    JOINED = "joined"
    """The gates, the ups and the downs of all experts are tensors of their own, of [experts *
    intermediate, hidden] each: downs by inputs."""
    INTERLEAVED = "interleaved"
    """A tensor holds a matrix of all experts; gate and up alternate along the outputs. Unquantized
    matrices are [experts, inputs, outputs]."""
    ALTERNATING = "alternating"
    """As INTERLEAVED, but [experts, outputs, inputs]."""


@dataclass(frozen=True)
class RouterSpec:
    """What scores the experts for each token: a linear layer, or an MLP."""

    bias: bool = False
    """Whether its logits have a learned bias."""
    correction: bool = False
    """Whether a learned bias is added to the scores for the choice of experts alone."""
    float32: bool = False
    """Whether it computes in float32, whatever the model's dtype is."""
    sparse_mixer: float = 0.0
    """The threshold of SparseMixer-v2 (Phi-3.5-MoE), which chooses two experts: each one's weight
    is the softmax among experts whose logits are within this share of the best; 0 = not used."""
    hidden: int = 0
    """Elements of the projection of a token on which the router is an MLP (ZAYA1); 0 = it is one
    matrix."""
    follows: bool = False
    """Whether what the router of the layer before had in place of this projection is added, times a
    learned factor of each element."""
    tokens: int = 0
    """Rows of a table of the experts of each token id, which replaces the choice; 0 = there is
    none."""


@dataclass(frozen=True)
class MoeSpec:
    """A mixture of experts: the weighted sum of each token's experts, and shared experts."""

    experts: int
    expert: MlpSpec
    """Each expert."""
    routing: Routing
    """How a token's experts and their weights follow from the router's logits."""
    router: RouterSpec = RouterSpec()
    shared: MlpSpec | None = None
    """Shared experts as one layer, whose output is added for every token; None = there are none."""
    shared_gate: bool = False
    """Whether the sigmoid of a learned product with the token scales the shared experts' output."""
    storage: ExpertStorage = ExpertStorage.SEPARATE
    latent: int = 0
    """Elements of the projection of a token that the routed experts read, and of their output
    before it is projected back; 0 = they read the token."""
    identities: int = 0
    """Experts behind these that yield what they read, without matrices (LongCat-Flash)."""
    idle: int = 0
    """Experts behind these that yield nothing, without matrices: a token that chooses one skips
    the layer (ZAYA1)."""
    own_norms: bool = False
    """Whether router, experts and shared experts have norms of their own (Gemma 4). The router's
    choice is then weighted by a learned factor per expert as well."""
    weighed_shared: int = 0
    """Shared experts of the size `shared` that the router scores too: weights of the chosen and of
    these add up to the routing's scale, times a learned one (Inkling). 0 = `shared` is added."""

    top_k_field: str = field(default="num_experts_per_tok", compare=False)
    """config.json's name of the experts that a token chooses, for errors."""

    def __post_init__(self) -> None:
        """Raises BadModel for numbers of experts that do not fit each other."""
        routing, experts = self.routing, self.experts
        if experts % routing.groups:
            raise BadModel(
                f"config.json: {experts} experts do not form {routing.groups} equal groups"
            )
        choice = experts // routing.groups * routing.kept_groups + self.idle
        choice += self.identities
        if routing.top_k > choice:
            raise BadModel(
                f"config.json: {self.top_k_field} is {routing.top_k}, but a token can only choose "
                f"among {choice} experts"
            )
        kinds = {kind.value for kind in ExpertActivation if kind.gated == self.expert.gated}
        if self.expert.of_experts not in kinds:
            raise BadModel(
                f"config.json: experts with the activation {self.expert.of_experts} are not "
                f"supported, only with {', '.join(sorted(kinds))}"
            )

    @property
    def choices(self) -> int:
        """What the router scores: experts with matrices, and those behind them without."""
        return self.experts + self.identities + self.idle
