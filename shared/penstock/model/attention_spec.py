"""What attention is made of, as data. A field's default is Llama's."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.block_index_spec import BlockIndexSpec


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
    """Whether norms of heads come after the rotation instead (Hunyuan)."""
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
    """Whether the gates' matrix is a separate tensor from that of the queries."""
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
