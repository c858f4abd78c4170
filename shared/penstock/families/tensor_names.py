"""How a family's files call a model's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TensorNames:
    """How a family's files call a layer's modules, and which of them hold several of ours."""

    modules: Mapping[str, str] = field(default_factory=dict)
    """The file's name of a module -> ours, where they differ. `*` stands for an expert's number. A
    name with `.weight` or `.bias` is that of a tensor, and so is ours."""
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The file's name of a module -> ours, in the order of their rows."""
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The file's name of a module whose tensor has one matrix for each expert -> ours, in the order
    of a matrix's rows."""
    alternating: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The file's name of a stack of experts' matrices as gpt-oss has them -> ours, whose rows
    alternate in it (see penstock_worker.weights.alternating)."""
    turned: bool | Literal["always"] = False
    """Whether a stack's matrices may be transposed: they are where they have another number of rows
    than the model's; `always`: in all files."""
    rows_of_experts: Mapping[str, tuple[str]] = field(default_factory=dict)
    """The file's name of a tensor that has all experts' matrices one below the other -> ours."""
    rows_turned: frozenset[str] = frozenset()
    """Names among `rows_of_experts` whose matrices are transposed."""
    by_head: frozenset[str] = frozenset()
    """Our names of modules whose rows the file has head by head: for each head a part of each of
    the things that the module gives. Ours have all heads of a thing together (see
    penstock_worker.weights.family_names)."""
    by_kv_head: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    """The file's name of a module that has for each KV head the rows of its queries, then of its
    key, then of its value -> ours."""
    shared_alone: bool = False
    """Whether the feed-forward of a layer without experts is called the shared expert."""
    layers_for_drafts: bool = False
    """Whether layers after the last one belong to a draft head, which isn't read."""
    correction_row: bool = False
    """Whether what is added to the scores by which experts are chosen has one row, and not one
    dimension (ERNIE 4.5)."""
    zero_biases: tuple[str, ...] = ()
    """Our names of modules of every layer without biases, whose products are computed together with
    others that have some: theirs are zeros."""
    unit_norms: bool | Literal["all"] = False
    """Whether norms of queries and keys have no weights in the file: theirs are ones. `all`: nor
    have other norms. A norm of embeddings has none either way."""
    unit_rows: frozenset[str] = frozenset()
    """Our names of modules whose rows are divided by their lengths when they are read."""
    pairs_adjacent: bool | Literal["without sections", "whole heads"] = False
    """Whether the rows of q and k, and the weights of their norms, are ordered so that the numbers
    of a rotary pair are adjacent; `without sections`: in files of models whose positions are one
    number (see RopeSpec.sections); `whole heads`: as if all of a head rotated, where a part
    does."""
    halves_swapped: bool = False
    """Whether the second half of a head's numbers rotates ahead of the first one: rows of q and k
    are put the other way round. Not of `pairs_adjacent`."""
    index_pairs_adjacent: bool = False
    """Whether the rows of an index's queries and keys, and its keys' norm, are ordered so."""
    in_recurrent: Mapping[str, str] = field(default_factory=dict)
    """The file's name of a module of recurrent layers -> ours, where other layers call something
    else so."""


OUR_NAMES = TensorNames()
PLAIN_GATE = ("mlp.gate_proj", "mlp.up_proj")
"""For TensorNames.zero_biases where only the down projection of a gated feed-forward has a bias."""
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FUSED_QKV = TensorNames(fused={"self_attn.qkv_proj": QKV})


def bert_names(
    *,
    query: str = "attention.self.query",
    key: str = "attention.self.key",
    value: str = "attention.self.value",
    output: str = "attention.output.dense",
    attention_norm: str = "attention.output.LayerNorm",
    up: str = "intermediate.dense",
    down: str = "output.dense",
    norm: str = "output.LayerNorm",
    further: Mapping[str, str] | None = None,
    qkv: str = "",
    up_gate: str = "",
    plain_gate: bool = False,
) -> TensorNames:
    """Returns the names of a family that is BERT but for what is said. `further`: the file's names
    of other modules -> ours. `qkv`, `up_gate`: of what has several modules' rows. `plain_gate`: see
    PLAIN_GATE."""
    fed = ("mlp.up_proj", "mlp.down_proj", "feed_forward_output_norm")
    in_layer = (*QKV, "self_attn.o_proj", "attention_output_norm", *fed)
    theirs = (query, key, value, output, attention_norm, up, down, norm)
    fused = {qkv: QKV, up_gate: ("mlp.up_proj", "mlp.gate_proj")}
    return TensorNames(
        {
            "embeddings.word_embeddings": "embed_tokens",
            "embeddings.position_embeddings": "embed_positions",
            "embeddings.token_type_embeddings": "embed_types",
            "embeddings.LayerNorm": "embedding_norm",
            **dict(zip(theirs, in_layer, strict=True)),
            **(further or {}),
        },
        {name: ours for name, ours in fused.items() if name},
        zero_biases=PLAIN_GATE if plain_gate else (),
    )
