"""What the layers of a decoder are made of, as data. A family of models fills these structs, and
every backend computes what they say. A field's default is Llama's. Sizes that all layers share are
in ModelConfig."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.block_index_spec import BlockIndexSpec
from penstock.model.recurrent_spec import RecurrentSpec


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """How rotary frequencies are stretched beyond the trained context.

    `linear` divides all frequencies by `factor`.  `llama3` is the banded scheme of the Llama-3.1
    release: wavelengths longer than original/low_freq_factor are divided by `factor`, shorter than
    original/high_freq_factor are kept, those between are blended.
    `yarn` (Peng et al., 2023) divides by `factor` what turns less than beta_slow times within the
    original context, keeps what turns more than beta_fast times, blends between; cosines and sines
    are multiplied by `attention_factor`.
    `longrope` (Ding et al., 2024) divides frequency i by long_factors[i], or by short_factors[i] in
    a model that is served within its original context; `attention_factor` as for yarn.
    `precomputed` multiplies frequency i by 1 / factors[i] (GGUF's rope_freqs tensor, which has
    `kept` numbers, the first ones of which count; 0: as many as there are frequencies).
    `proportional` divides the first `kept` frequencies by `factor`, and makes all others 0 (Gemma
    4): the head rotates in part, and its pairs are still half of it apart.
    """

    kind: Literal["linear", "llama3", "yarn", "longrope", "precomputed", "proportional"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Whether the bounds of yarn's blend are whole dimensions."""
    attention_factor: float = 1.0
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    kept: int = 0


class RopeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A rotary position embedding (Su et al., 2021)."""

    theta: float = 10_000.0
    dims: int
    """How many numbers of a head rotate, its first ones; even. Number i rotates against number i +
    dims / 2, whatever a file's order is: weights are put into this one when they are loaded."""
    scaling: RopeScaling | None = None
    query_growth: float = 0.0
    """Rotated queries at position p are multiplied by 1 + query_growth * ln(1 + floor((p + first) /
    length)) (Llama 4, Ministral 3)."""
    query_growth_length: int = 8192
    query_growth_first: int = 0
    sections: tuple[int, ...] = ()
    """How many rotary pairs, from the first on, turn by a token's time, row and column (Wang et
    al., "Qwen2-VL", 2024); empty: all turn by its position. Text has three equal numbers."""
    interleaved: bool = False
    """Whether time, row and column take turns, until a row or a column has its number of pairs; all
    others turn by time (Qwen team, "Qwen3-VL technical report", 2025)."""

    @property
    def axes(self) -> tuple[int, ...]:
        """What each pair turns by: 0 a token's time, 1 its row, 2 its column. Empty: all turn by
        its position."""
        if not self.interleaved:
            return tuple(axis for axis, pairs in enumerate(self.sections) for _ in range(pairs))
        _, rows, columns = self.sections
        ends = (0, 3 * rows, 3 * columns)
        return tuple(pair % 3 if pair < ends[pair % 3] else 0 for pair in range(self.dims // 2))


class NormSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A normalisation over the last dimension."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    plus_one: bool = False
    """Whether the factor is 1 + weight."""
    plus_one_in_layers: bool = False
    """Whether that holds only of a layer's norms over the hidden state."""
    output_eps: float | None = None
    """Epsilon of the norms behind attention and feed-forward; None: it is theirs, too."""
    bias: bool = False
    """Whether a layer norm has a bias."""


class LatentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Attention over latents (DeepSeek-AI, "DeepSeek-V2", 2024). Only a vector for each token is
    kept, of which each head's keys and values are linear functions: it stands in the cache as one
    KV head, whose value is a part of its key. Sizes are element counts."""

    rank: int
    """Size of the latent, which is what a value is made of."""
    rotating: int
    """Size of a query head's part that rotates, and of the key's, which all heads share."""
    plain: int
    """Size of a query head's part that doesn't rotate."""
    value: int
    """Size of a head's value."""
    query_rank: int = 0
    """Size of the vector that queries are made of; 0: they are made of the hidden state."""
    eps: float = 1e-6
    """Epsilon of the norms of both vectors."""


class IndexSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An index that chooses the tokens that attention over latents reads (DeepSeek-AI,
    "DeepSeek-V3.2", 2025). A token's score for another one is a sum over heads: of a weight, which
    is made of the hidden state, times the part above 0 of the product of the head's query, made of
    the vector that attention's queries are made of, with the other token's one key. Queries and
    keys rotate in as many numbers as attention's do, their first ones. Sizes are element counts."""

    heads: int
    size: int
    """Size of a head's query, and of a token's key."""
    most: int
    """A token reads so many tokens, those with the highest scores, of equal ones the first; all
    that it sees if they aren't more."""
    shared: bool = False
    """Whether the layer has no index of its own: it reads what the nearest layer before it that has
    one has chosen."""
    eps: float = 1e-6
    """Epsilon of the layer norm of keys."""


class CompressedSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Attention to the last tokens, and to entries that stand for several tokens each (DeepSeek-AI,
    "DeepSeek-V4", 2026). A token's one key is its value, too, and is made of the hidden state; so
    are the numbers that an entry is made of: for each of its tokens, values and the logits of the
    softmax over tokens that weighs them, number by number. A token sees an entry once it has come
    to its last token, whatever the window is. The last numbers of a head rotate, in adjacent pairs,
    and what the heads give is turned back. Sizes are element counts."""

    rate: int = 0
    """Tokens that an entry stands for; 0: the layer has no entries."""
    overlaps: bool = False
    """Whether an entry is also made of the tokens of the one before it, which have further numbers
    for it."""
    index: IndexSpec | None = None
    """What chooses the entries that are read: `most` of them. Its keys are made of tokens as
    entries are. None: all that are seen are read."""
    query_rank: int
    """Size of the vector that queries are made of."""
    groups: int
    """Groups of heads, each of which has a product of its own into `group_rank` numbers, of which
    the output is made."""
    group_rank: int

    @property
    def series(self) -> int:
        """How many values and logits a token has for each number of an entry."""
        return 2 if self.overlaps else 1

    @property
    def reach(self) -> int:
        """Tokens that an entry is made of."""
        return self.series * self.rate


class KVHeadsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Key and value heads of a layer."""

    count: int
    size: int
    """Numbers of a key, of a value and of a query."""


class AttentionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Grouped-query attention, causal."""

    window: int | None = None
    """A token sees itself and the window - 1 tokens before it; None: all tokens before it."""
    chunk: int | None = None
    """A token sees those before it within its chunk of positions [n * chunk, (n + 1) * chunk)."""
    scale: float | None = None
    """Factor of query times key; None: head_dim ** -0.5."""
    soft_cap: float | None = None
    """Scaled scores x become soft_cap * tanh(x / soft_cap)."""
    rope: int | None = 0
    """Which of ModelConfig.ropes rotates queries and keys; None: no rotation."""
    norm: Literal["none", "head", "whole"] = "none"
    """Norm of queries and keys before the rotation: over each head, or over all heads together."""
    norm_behind: bool = False
    """Whether norms of heads stand behind the rotation instead (Hunyuan)."""
    latent: LatentSpec | None = None
    """Keys and values are made of a latent. ModelConfig has its one KV head, whose size is that of
    the latent and of the part that rotates. All layers have the same, or none."""
    index: IndexSpec | None = None
    """What chooses the tokens that are read, of the same sizes in all layers; None: all that are
    seen are. Only of latents."""
    blocks: BlockIndexSpec | None = None
    """What chooses the blocks that are read, the same in all layers with one. Not of latents."""
    query_heads: int | None = None
    """The layer's own number of query heads; None for that of ModelConfig."""
    compressed: CompressedSpec | None = None
    """Keys and values are of a few tokens and of entries that stand for more. All layers have it,
    or none. ModelConfig has its one KV head."""
    kv_heads: KVHeadsSpec | None = None
    """The layer's own KV heads; None for those of ModelConfig."""
    value_norm: bool = False
    """Whether each head's values are divided by their root mean square."""
    values_of_keys: bool = False
    """Whether values are what keys are before norm and rotation; else they are a product."""
    reads: int | None = None
    """A layer before this one whose keys and values it reads; it has none of its own."""
    value_size: int | None = None
    """Numbers of a head's value, where they are fewer than its key's. Backends know nothing of it:
    matrices are filled up with zeros when they are read, and so are values in the cache."""
    sinks: bool = False
    """A learned score for each query head, which takes part in the softmax without a value."""
    output_gate: bool = False
    """A learned sigmoid for each number that the heads give (Qiu et al., "Gated attention for large
    language models", 2025); made of the hidden state together with the queries."""
    gate_apart: bool = False
    """Whether the gates' matrix is a tensor of its own, beside that of the queries."""
    head_gate: bool = False
    """A learned sigmoid for each head, which weighs all numbers that the head gives (StepFun, "Step
    3.5 Flash", 2026); made of the hidden state."""
    soft_gate: bool = False
    """Whether it is a softplus instead (Poolside, "Laguna", 2026)."""
    qkv_bias: bool = False
    qkv_bound: float | None = None
    """Queries, keys and values are kept within minus and plus this one, before norms and rotation
    (MosaicML, "Introducing MPT-7B", 2023). Not where there are gates. None: there are no bounds."""
    output_bias: bool = False
    sees_pictures: bool = False
    """Whether a token attends to the rows of the last pictures before it, and to no token (Llama
    3.2 Vision: Grattafiori et al., "The Llama 3 herd of models", 2024, section 7). Learned gates
    weigh what attention and feed-forward add, which is nothing of a token before all pictures."""
    sub_norm: bool = False
    """Whether what all heads give together has a norm before it is multiplied (Wang et al.,
    "BitNet: scaling 1-bit transformers for large language models", 2023)."""


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
    """Whether a network of the layer's own inner dimension is beside the experts (Gemma 4), both
    and the router with norms of their own. Only in layers of order `sandwich`."""

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
    """What activation(gate) is at most, and up as well, which is at least minus that (StepFun,
    "Step 3.5 Flash", 2026). None: no bounds. Beside experts: of the one that all tokens have."""
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
    """Whether `recurrent` stands beside attention instead: both read the same norm of the residual,
    and the sum of what they give is added to it (Zuo et al., "Falcon-H1", 2025)."""
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
    weights of its own. Only of attention with a feed-forward behind it."""
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
    "Alternating updates for efficient transformers", 2023), and a low-rank path beside attention
    (Menghani et al., "LAuReL: learned augmented residual layer", 2024)."""

    count: int
    active: int
    """Which one the layers compute."""
    scaled: bool
    """Whether it has learned factors before a layer's own input is added to the others."""
    rank: int
    """Rank of the path beside attention."""


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
