"""What is made of the rows of an input's tokens, on the host: their vectors, their classes, and
weights of the vocabulary.

All of it is float32, in memory of its own, and of one input at a time: so the shapes, and with them
the bits, depend on that input alone.

Sources: Khattab and Zaharia, "ColBERT", 2020; Formal et al., "SPLADE v2", 2021; Chen et al.,
"BGE M3-Embedding", 2024; heads as transformers has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from penstock.errors import UnsupportedModel
from penstock.families.family import EncoderFamily
from penstock.families.served import ENCODERS
from penstock.model.config import EncoderConfig
from penstock.model.pooling_config import PoolingConfig, SparseWeights
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import Pooling, PoolingTask, Vectors
from penstock_worker.pooling.encoder.names import bare_name
from penstock_worker.pooling.heads import ROWS, Head, load_dense
from penstock_worker.pooling.pool import activated, as_vectors, finished
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.weights import Weights

RowHead = Callable[[Tensor, list[int], Pooling], Vectors]
"""Takes an input's rows, [tokens, hidden], its token ids, and what is asked. Raises ValueError for
numbers that aren't finite."""

WORD_ROWS = 32
"""Tokens whose logits of all words are in memory at once."""


def load_row_heads(
    prepared: PreparedModel, pooling: PoolingConfig
) -> Mapping[PoolingTask, RowHead]:
    """Returns what makes something of rows, by task. Raises UnsupportedModel for tensors that don't
    fit, and ModelNotFound."""
    dense = None if pooling.late is None else load_dense(pooling.late.dense, ROWS)
    found: dict[PoolingTask, RowHead] = {"token_embed": partial(token_vectors, pooling, dense)}
    config, sparse = prepared.config, pooling.sparse
    if not isinstance(config, EncoderConfig):
        return found
    if pooling.by_token:
        found["token_classify"] = partial(_classes, pooling, _token_head(prepared, config, pooling))
    if sparse is not None and sparse.tokens is not None:
        weight = load_dense((sparse.tokens,), ROWS)
        found["embed_sparse"] = partial(_weights_of_tokens, sparse, weight)
    elif sparse is not None:
        found["embed_sparse"] = partial(_weights_of_words, sparse, *_word_head(prepared, config))
    return found


def token_vectors(
    pooling: PoolingConfig, dense: Head | None, rows: Tensor, tokens: list[int], asked: Pooling
) -> Vectors:
    """A vector of each row, [rows, size], through `dense` if there is one."""
    return as_vectors(finished(rows if dense is None else dense(rows), asked, pooling))


def _classes(
    pooling: PoolingConfig, head: Head, rows: Tensor, tokens: list[int], asked: Pooling
) -> Vectors:
    scores = head(rows)
    if asked.activate is None or asked.activate:
        scores = activated(scores, pooling.activation)
    return as_vectors(scores)


def _weights_of_words(
    sparse: SparseWeights,
    transform: Head,
    words: Head,
    rows: Tensor,
    tokens: list[int],
    asked: Pooling,
) -> Vectors:
    """SPLADE: log(1 + relu) of the logits of all words, of all tokens."""
    weights = torch.zeros(sparse.size)
    for part in transform(rows).split(WORD_ROWS):
        found = words(part.clone()).relu_().log1p_()
        if sparse.twice:
            found.log1p_()
        if sparse.adds:
            weights += found.sum(0)
        else:
            weights = torch.maximum(weights, found.amax(0))
    return as_sparse(weights)


def _weights_of_tokens(
    sparse: SparseWeights, weight: Head, rows: Tensor, tokens: list[int], asked: Pooling
) -> Vectors:
    """BGE-M3: the largest weight of each token that the text has."""
    own = weight(rows)[:, 0].relu_()
    weights = torch.zeros(sparse.size)
    weights.scatter_reduce_(0, torch.tensor(tokens), own, "amax")
    weights[list(sparse.skipped)] = 0
    return as_sparse(weights)


def as_sparse(weights: Tensor) -> Vectors:
    """Returns the numbers that aren't 0 in wire format. Raises ValueError if any isn't finite."""
    if not bool(torch.isfinite(weights).all()):
        raise ValueError("the model gave numbers that are not finite")
    places = weights.nonzero()[:, 0]
    numbers = weights[places].numpy().astype("<f4").tobytes()
    return Vectors((len(places),), numbers, places.numpy().astype("<i4").tobytes())


def _token_head(prepared: PreparedModel, config: EncoderConfig, pooling: PoolingConfig) -> Head:
    """The head that classifies each token. Raises UnsupportedModel for missing tensors."""
    family, size = ENCODERS[config.family], config.hidden_size
    head = family.head
    if head is None:
        raise UnsupportedModel(f"classes of the tokens of {config.family} are not served")
    outer = family.token_head or head.outer
    inner = () if family.token_head else (head.inner, head.norm)
    weights = _opened(prepared, family, (outer, *inner))
    last = ROWS.product(
        weights.take(f"{outer}.weight", (len(pooling.labels), size)),
        weights.take(f"{outer}.bias", (len(pooling.labels),)),
    )
    if not inner:
        return last
    transform = _transform(weights, config, *inner, head.activation, size, bias=config.head_bias)
    return lambda rows: last(transform(rows))


def _word_head(prepared: PreparedModel, config: EncoderConfig) -> tuple[Head, Head]:
    """The head that fills in masked words: what is done to rows, and the product that gives the
    logit of each word. Raises UnsupportedModel for missing tensors."""
    family, vocab, size = ENCODERS[config.family], config.vocab_size, config.layers.row_of_embedding
    head = family.words
    if head is None:
        raise UnsupportedModel(f"the head for masked words of {config.family} is not served")
    embedding = ("embeddings.word_embeddings", "embeddings.tok_embeddings")
    weights = _opened(prepared, family, (head.dense, head.norm, head.words, head.bias, *embedding))
    names = [name for name in (head.words, *embedding) if weights.has(f"{name}.weight")]
    matrix = weights.take(f"{names[0] if names else head.words}.weight", (vocab, size))
    biases = [name for name in (f"{head.words}.bias", f"{head.bias}.bias", head.bias) if name]
    bias = next((name for name in biases if weights.has(name)), None)
    added = None if bias is None else weights.take(bias, (vocab,))
    activation = head.activation or config.layers.layer(0).feed_forward.activation
    bias_of = config.head_bias
    transform = _transform(weights, config, head.dense, head.norm, activation, size, bias=bias_of)
    return transform, ROWS.product(matrix, added)


def _transform(
    weights: Weights,
    config: EncoderConfig,
    dense: str,
    norm: str,
    activation: str,
    size: int,
    *,
    bias: bool,
) -> Head:
    """A product of `size` numbers, an activation and a layer norm."""
    eps = config.layers.norm.eps
    added = weights.take(f"{dense}.bias", (size,)) if bias else None
    product = ROWS.product(weights.take(f"{dense}.weight", (size, config.hidden_size)), added)
    scale = weights.take(f"{norm}.weight", (size,))
    shift = weights.take(f"{norm}.bias", (size,)) if weights.has(f"{norm}.bias") else None

    def through(rows: Tensor) -> Tensor:
        inner = ROWS.activate(product(rows), activation)
        return torch.nn.functional.layer_norm(inner, (size,), scale, shift, eps)

    return through


def _opened(prepared: PreparedModel, family: EncoderFamily, modules: tuple[str, ...]) -> Weights:
    """Returns the modules' tensors, in the host's memory. Raises UnsupportedModel for a GGUF
    file."""
    if prepared.weights.format == "gguf":
        raise UnsupportedModel(
            "GGUF files hold no head for masked words, nor for classes of tokens"
        )
    wanted = tuple(f"{name}." for name in modules if name)

    def named(name: str) -> str | None:
        own = bare_name(name)
        return own if own.startswith(wanted) or own in modules else None

    found = safetensors_tensors(prepared.weights.files, named)
    return Weights(found, torch.float32)
