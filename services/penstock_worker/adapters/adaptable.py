"""Which modules of a model adapters may change: those whose products are computed by themselves,
and the two ends of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.model import mechanisms as mechanism
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec

_WHOLE_MODEL = frozenset(
    {
        mechanism.STREAMS,
        mechanism.HYPER_CONNECTIONS,
        mechanism.CROSS_ATTENTION,
        mechanism.EXPERTS_BESIDE,
        mechanism.SHARED_KV,
    }
)
"""Mechanisms that bind a layer's products to others."""

QUERY, KEY, VALUE, OUTPUT = (f"self_attn.{name}_proj" for name in "qkvo")
EMBEDDING, HEAD = "embed_tokens", "lm_head"
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
GATE, UP, DOWN = (f"mlp.{name}" for name in _PROJECTIONS)
SHARED_GATE, SHARED_UP, SHARED_DOWN = (f"mlp.shared_expert.{name}" for name in _PROJECTIONS)
ROUTER, SHARED_WEIGHT = "mlp.router", "mlp.shared_expert_gate"
"""Names in a mixture of experts; the last is the weight of the expert that every token has."""
LATENT_DOWN, LATENT_UP = "mlp.latent_down", "mlp.latent_up"
"""What leads to the experts' latents, and back."""


def adaptable_ends(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Returns (outputs, inputs) of embedding and head, tied or not. The embedding is the product
    with a token's unit vector."""
    hidden = config.hidden_size
    return {EMBEDDING: (hidden, config.embedding_rows), HEAD: (config.vocab_size, hidden)}


def whole_matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Returns rows and columns of the matrices that an adapter may bring whole, by module. A head
    with a bias isn't among them."""
    hidden = config.hidden_size
    found = {EMBEDDING: (config.embedding_rows, hidden)}
    if not config.head_bias:
        found[HEAD] = (config.vocab_size, hidden)
    return found


def adaptable_modules(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Returns (outputs, inputs) of each layer's module by our name, as layers.0.self_attn.q_proj.
    Latents, recurrent layers and gated queries have none; mixtures of experts have their own."""
    if mechanism.mechanisms(config) & _WHOLE_MODEL:
        return {}
    return {
        f"layers.{number}.{name}": shape
        for number in range(config.num_layers)
        for name, shape in _of_layer(config, config.layer(number), number)
    }


def expert_modules(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Returns (outputs, inputs) of the modules of mixtures of experts, by our name: routers,
    experts (layers.0.mlp.experts.3.up_proj), and the one that every token has."""
    if mechanism.mechanisms(config) & _WHOLE_MODEL:
        return {}
    return {
        f"layers.{number}.{name}": shape
        for number in range(config.num_layers)
        for name, shape in _of_experts(config, config.layer(number).feed_forward)
    }


def expert_targets(number: int) -> tuple[str, str, str]:
    """Our names of an expert's gate, up and down within its layer."""
    gate, up, down = (f"mlp.experts.{number}.{name}" for name in _PROJECTIONS)
    return gate, up, down


def _of_layer(
    config: ModelConfig, spec: LayerSpec, number: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    hidden, rule = config.hidden_size, spec.attention
    if spec.weight_factors or rule.value_size is not None or spec.repeats is not None:
        return  # The adapter would have to be weighed, or filled up, or is that of another layer.
    gated = rule.output_gate or rule.head_gate
    if spec.attends and rule.latent is None and not gated and not rule.values_of_keys:
        own = config.kv_heads(number)
        queries, keys = config.query_heads(number) * own.size, own.count * own.size
        yield QUERY, (queries, hidden)
        yield KEY, (keys, hidden)
        yield VALUE, (keys, hidden)
        yield OUTPUT, (hidden, queries)
    fed = spec.feed_forward
    if spec.halves != "mixer" and fed.experts is None and not fed.sparsity:
        inner = config.inner(number)
        if fed.gated:
            yield GATE, (inner, hidden)
        yield UP, (inner, hidden)
        yield DOWN, (hidden, inner)


def _of_experts(config: ModelConfig, fed: FeedForwardSpec) -> Iterator[tuple[str, tuple[int, int]]]:
    hidden, experts = config.hidden_size, fed.experts
    if experts is None:
        return
    yield ROUTER, (experts.count, hidden)
    width = experts.width(hidden)
    if experts.latent:
        yield LATENT_DOWN, (width, hidden)
        yield LATENT_UP, (hidden, width)
    for number in range(experts.count):
        yield from _network(fed, expert_targets(number), experts.inner, width)
    if experts.shared_inner:
        if experts.shared_gate:
            yield SHARED_WEIGHT, (1, hidden)
        names = (SHARED_GATE, SHARED_UP, SHARED_DOWN)
        yield from _network(fed, names, experts.shared_inner, hidden)


def _network(
    fed: FeedForwardSpec, names: tuple[str, str, str], inner: int, width: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    """The modules of a feed-forward that maps rows of `width` numbers."""
    gate, up, down = names
    if fed.gated:
        yield gate, (inner, width)
    yield up, (inner, width)
    yield down, (width, inner)


def adapter_bytes(modules: Mapping[str, tuple[int, int]], rank: int, number_bytes: int) -> int:
    """Returns what an adapter of all these modules takes at most: factors, in rows and columns
    rounded up as kernels have them, and two float32 for each output (DoRA)."""
    return sum(
        number_bytes * _numbers(name, shape, rank) + 8 * _rounded(shape[0], 16)
        for name, shape in modules.items()
    )


def whole_bytes(matrices: Mapping[str, tuple[int, int]], number_bytes: int) -> int:
    """Returns the bytes that matrices take which are brought whole, [rows, columns], rounded up as
    kernels have them."""
    return number_bytes * sum(
        _rounded(rows, 16) * _rounded(columns, 32) for rows, columns in matrices.values()
    )


def _numbers(name: str, shape: tuple[int, int], rank: int) -> int:
    """Numbers of both factors."""
    outputs, inputs = shape
    raised = _rounded(rank, 2) * _rounded(outputs, 16)
    if name == EMBEDDING:  # Of which tokens look rows up, as in a matrix.
        return raised + _rounded(rank, 32) * _rounded(inputs, 16)
    return raised + _rounded(rank, 16) * _rounded(inputs, 2)


def _rounded(count: int, to: int) -> int:
    return -(-count // to) * to
