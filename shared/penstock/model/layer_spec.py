"""What the layers of a decoder are made of, as data. A family of models fills these structs, and
every backend computes what they say. A field's default is Llama's. Sizes that all layers share are
in ModelConfig."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.attention_spec import AttentionSpec
from penstock.model.recurrent_spec import RecurrentSpec


class NormSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A normalisation over the last dimension."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    plus_one: bool = False
    """Whether the factor is 1 + weight."""
    plus_one_in_layers: bool = False
    """Whether that holds only of a layer's norms over the hidden state."""
    output_eps: float | None = None
    """Epsilon of the norms after attention and feed-forward; None: that of the others."""
    bias: bool = False
    """Whether a layer norm has a bias."""


SUM_FLOOR = 1e-20
"""Keeps experts' weights finite, and changes none."""


class ExpertsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts: a router chooses some feed-forward networks for each token."""

    count: int
    active: int
    """Experts of a token."""
    inner: int
    """Inner dimension of an expert."""
    limit: float | None = None
    """The chosen experts' `limit`, as FeedForwardSpec has it."""
    latent: int = 0
    """Size of what a token's experts, but not the shared one, read and write: a matrix makes it of
    the hidden state, another one leads back (NVIDIA, "Nemotron 3", 2025). 0: the hidden state."""
    router: Literal["softmax", "sigmoid", "sqrt_softplus", "sparse_mixer"] = "softmax"
    """What makes scores of its products. Normalised, softmax over all experts is that over the
    chosen ones.  sparse_mixer (Liu et al., "GRIN", 2024): one choice after another, the best
    product that is left has its softmax over those left that are near it."""
    nearness: float = 0.0
    """How far below the best sparse_mixer calls near, as a share of the larger of the two."""
    by_token: bool = False
    """Whether a table says which experts a token's id has (Roller et al., "Hash layers for large
    sparse models", 2021): scores only weigh them. Only where `hyper_connections` are."""
    normalised: bool = True
    """Whether the chosen experts' weights are divided by their sum."""
    sum_floor: float = SUM_FLOOR
    """Number that is added to that sum."""
    scale: float = 1.0
    """Factor of the chosen experts' weights."""
    shared_inner: int = 0
    """Inner dimension of the expert that every token has; 0: there is none."""
    shared_gate: bool = False
    """Whether a learned sigmoid weighs the shared expert."""
    correction: bool = False
    """Whether a learned bias is added to the scores for choosing, not for weighing."""
    groups: int = 1
    """Experts are chosen from the best `active_groups` of so many groups."""
    active_groups: int = 1
    group_best: int = 2
    """How many of a group's experts make its score, which is the sum of theirs."""
    router_bias: bool = False
    expert_scales: bool = False
    """Whether each expert has a learned factor of its weight."""
    weighs_input: bool = False
    """Whether an expert's weight is a factor of its input, instead of its result (Llama 4)."""
    beside: bool = False
    """Whether a feed-forward with the layer's own inner dimension runs in parallel with the experts
    (Gemma 4), it and the router with norms of their own. Only in layers of order `sandwich`."""

    def width(self, hidden: int) -> int:
        """Returns how many numbers the chosen experts read and write."""
        return self.latent or hidden


class XIELU(msgspec.Struct, frozen=True):
    """Coefficients of the activation xielu, as files have them."""

    alpha_p: float
    """Its softplus is the factor of the square of x above 0."""
    alpha_n: float
    """Its softplus, with beta added, is the factor of exp(x) - 1 - x below 0."""
    beta: float
    """The factor of x itself."""
    eps: float
    """The largest number that an exponential is taken of."""


class FeedForwardSpec(msgspec.Struct, frozen=True, kw_only=True):
    """activation(gate) * up, projected down; without a gate, activation(up)."""

    activation: Literal[
        "silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu", "quick_gelu", "xielu"
    ] = "silu"
    """gelu_tanh: its approximation by tanh.  quick_gelu: x * sigmoid(1.702 x), of a feed-forward
    without a gate.  relu2: the square of relu.  clamped_swiglu: with the gate at most 7 and up
    between -7 and 7, gate * sigmoid(1.702 gate) * (up + 1) (gpt-oss).  xielu: of a feed-forward
    without a gate, with learned coefficients: a parabola above 0, an exponential below it (Huang
    and Schlag, "Deriving activation functions using integration", 2024)."""
    xielu: XIELU | None = None
    """Its coefficients, where a file's metadata has them; None: they are tensors."""
    gated: bool = True
    bias: bool = False
    limit: float | None = None
    """Upper bound of activation(gate) and of up, which also has minus it as lower bound (StepFun,
    "Step 3.5 Flash", 2026). None: no bounds. In a layer with experts: of the shared one."""
    inner: int | None = None
    """Inner dimension; None: as ModelConfig says."""
    sparsity: float = 0.0
    """Share of the gate's numbers that become 0, those that are lowest, if they are normally
    distributed (Gemma 3n); the others lose what the limit is. 0: all are kept."""
    gate_limit: float | None = None
    """What the gate is at most before its activation, and up as well, which is at least minus that
    (DeepSeek-V4). None: there are no such bounds."""
    sub_norm: bool = False
    """Whether the inner values have a norm before they are projected down, as AttentionSpec has it.
    Not where there are experts."""
    experts: ExpertsSpec | None = None


class RowFactors(msgspec.Struct, frozen=True, kw_only=True):
    """Factors of a module's rows."""

    module: str
    """Our name of it within the layer."""
    parts: tuple[tuple[int, float], ...]
    """How many rows have which factor, from the first one on."""


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A layer: attention, then feed-forward, each added to the residual.

    order: where the norms are.  pre: before each.  post: after each, before it is added.
    summed: after each, of its sum with the residual, which the norm's output becomes (BERT).
    sandwich: both.  parallel: one before both, which have the same input; two_norms: each of them
    has its own.
    """

    attention: AttentionSpec = AttentionSpec()
    recurrent: RecurrentSpec | None = None
    """Set, it stands in the attention's place."""
    attends_beside: bool = False
    """Whether `recurrent` runs in parallel with attention instead: both read the same norm of the
    residual, and the sum of their outputs is added to it (Zuo et al., "Falcon-H1", 2025)."""
    feed_forward: FeedForwardSpec = FeedForwardSpec()
    halves: Literal["both", "mixer", "feed_forward"] = "both"
    """mixer: there is no feed-forward.  feed_forward: there is neither attention nor
    `recurrent`."""
    order: Literal["pre", "post", "summed", "sandwich", "parallel"] = "pre"
    two_norms: bool = False
    first_norm: bool = True
    """Whether a layer of order `pre` has a norm before attention (ModernBERT's first layer has
    none)."""
    residual_multiplier: float = 1.0
    """Factor of what attention and feed-forward add to the residual."""
    output_scale: bool = False
    """Whether the layer's output, with the residual, has a learned factor."""
    repeats: int | None = None
    """A layer before this one whose weights it has, with keys and values of its own; None: it has
    weights of its own. Only for attention followed by a feed-forward."""
    residual_norm: bool = False
    """Whether the residual becomes what the model's last norm makes of it before the layer reads
    it."""
    weight_factors: tuple[RowFactors, ...] = ()
    """What rows of matrices are multiplied by when they are read from a hub's files, whose code
    multiplies inputs and outputs."""

    @property
    def attends(self) -> bool:
        """Whether the layer has keys and values."""
        mixes = self.recurrent is None or self.attends_beside
        return mixes and self.halves != "feed_forward"


class CrossAttentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of an encoder-decoder model attend to an encoder's output, too, between attention and
    feed-forward (Vaswani et al., 2017).

    That output takes the first `rows` tokens of every sequence: where other tokens' own keys and
    values are kept, theirs are those of the layer's attention to the encoder. The decoder's first
    token is the one after them, and its own attention goes back as far as that."""

    rows: int
    """Rows of the encoder's output, always as many."""


class PerLayerInputsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An input that each layer gets for each token, made of a table of its own and of the embedding
    (Gemma 3n). Sizes are element counts."""

    size: int
    """Size of a layer's input."""
    vocab_size: int
    """Rows of the table. An id beyond it has the row of id 0."""
    media_id: int = 0
    """The id whose row stands for whatever is no token: pictures and sounds."""


class StreamsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Several residuals, of which each layer computes one and predicts the others (Baykal et al.,
    "Alternating updates for efficient transformers", 2023), and a low-rank path parallel to
    attention (Menghani et al., "LAuReL: learned augmented residual layer", 2024)."""

    count: int
    active: int
    """Which one the layers compute."""
    scaled: bool
    """Whether it has learned factors before a layer's own input is added to the others."""
    rank: int
    """Rank of the path parallel to attention."""


class HyperConnectionsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Several residuals, all of which each half of a layer reads and writes (Zhu et al.,
    "Hyper-connections", 2024): it reads a weighted sum, and a matrix of which rows and columns sum
    to 1 mixes them before its result is added with weights of its own (Xie et al.,
    "Manifold-constrained hyper-connections", 2026). All of these are made of the residuals."""

    count: int
    rounds: int
    """How many times columns are divided by their sums, rows between (Sinkhorn and Knopp, 1967)."""
    eps: float
    """Is added to these sums, and to weights of what is read."""
