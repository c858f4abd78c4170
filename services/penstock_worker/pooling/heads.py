"""What the vectors of inputs go through: classification heads, and dense layers of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch

from penstock.errors import UnsupportedModel
from penstock.families.served import ENCODERS
from penstock.model.config import EncoderConfig, ModelConfig, SharedSpace
from penstock.model.pooling_config import DENSE_TENSORS, DenseLayer, PoolingConfig
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.files import safetensors_tensors
from penstock_worker.weights.gguf_files import named_tensors
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

Head: TypeAlias = "Callable[[Tensor], Tensor]"
"""Maps [inputs, hidden] to [inputs, labels], float32; dense layers and products that are made for
one input at a time map [hidden] to [labels]."""


ANSWERS = "cls.output.weight"
"""Rows for two answers, yes and no, in GGUF files of rerankers that are decoders."""


class HeadOps(Protocol):
    """The operations of heads, in float32. An input's result never depends on the others."""

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        """`weight` is [outputs, inputs], `bias` [outputs]."""

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """`kind` is tanh, relu or gelu."""

    def of_inputs(self, head: Head) -> Head:
        """Returns what applies a head of these operations to [inputs, hidden]."""


@dataclass(frozen=True)
class VectorProduct:
    """A product with one vector at a time."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        product = self.weight @ x
        return product if self.bias is None else product + self.bias


_ACTIVATIONS: Mapping[str, Head] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
}


class VectorOps:
    """Plain torch, for the vector of one input at a time, so that the result doesn't depend on the
    batch."""

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return VectorProduct(weight, bias)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return _ACTIVATIONS[kind](x)

    def of_inputs(self, head: Head) -> Head:
        # Copies: the alignment of memory may affect BLAS's order of summation.
        return lambda vectors: torch.stack([head(vector.clone()) for vector in vectors])


VECTORS: HeadOps = VectorOps()


class RowOps(VectorOps):
    """Plain torch, for the rows of one input at a time, in memory of their own: so the shapes, and
    with them the bits, depend on that input alone."""

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return lambda rows: torch.nn.functional.linear(rows, weight, bias)


ROWS: HeadOps = RowOps()


def encoder_head(
    config: EncoderConfig, weights: Weights, labels: int, ops: HeadOps = VECTORS
) -> Head:
    """Returns the family's head as transformers has it. Raises UnsupportedModel for missing
    tensors."""
    size = config.hidden_size
    head = ENCODERS[config.family].head
    if head is None:
        raise UnsupportedModel(f"a classification head of {config.family} is not served")
    first = _dense(weights, head.inner, size, size, ops, bias=config.head_bias)
    norm = _norm(weights, head.norm, config)
    second = _dense(weights, head.outer, labels, size, ops)
    return ops.of_inputs(
        lambda vectors: second(norm(ops.activate(first(vectors), head.activation)))
    )


def vector_head(
    config: EncoderConfig, space: SharedSpace, weights: Weights, ops: HeadOps = VECTORS
) -> Head:
    """Returns the product that makes the vector of a text, [size], of a token's hidden state.
    Raises UnsupportedModel for missing tensors."""
    vector = _dense(weights, "vector", space.size, config.hidden_size, ops, bias=space.bias)
    return ops.of_inputs(vector)


def _norm(weights: Weights, name: str, config: EncoderConfig) -> Head:
    """Returns the head's layer norm, which treats each input by itself; without a name, nothing is
    normalised."""
    if not name:
        return lambda vectors: vectors
    shape, spec = (config.hidden_size,), config.layers.norm
    weight = weights.take(f"{name}.weight", shape, torch.float32)
    bias = weights.take(f"{name}.bias", shape, torch.float32) if spec.bias else None
    return lambda vectors: torch.nn.functional.layer_norm(vectors, shape, weight, bias, spec.eps)


def decoder_head(weights: Weights, labels: int, hidden: int, ops: HeadOps = VECTORS) -> Head:
    """Returns a head of one matrix without a bias."""
    score = weights.take("score.weight", (labels, hidden), torch.float32)
    return ops.of_inputs(ops.product(score))


def head_of(
    weights: Weights, config: ModelConfig, pooling: PoolingConfig | None, ops: HeadOps
) -> Head | None:
    """Returns the classification head that is asked for, and passes over what else the file has of
    heads. `config` is that of the whole model."""
    head = None
    if pooling is not None and pooling.answers is not None:
        head = answer_head(weights, config, pooling.answers, ops)
    elif pooling is not None and pooling.labels:
        head = decoder_head(weights, len(pooling.labels), config.hidden_size, ops)
    for name in ("score.weight", "lm_head.bias", ANSWERS):
        weights.ignore(name)
    return head


def answer_head(
    weights: Weights, config: ModelConfig, answers: tuple[int, int], ops: HeadOps = VECTORS
) -> Head:
    """Returns a head of one label, made of the output head's rows for two tokens: what the second's
    logit has more than the first's. Its logistic function is the second's probability, of the two.

    Source: the model card of Qwen3-Reranker. Raises UnsupportedModel for a missing tensor.
    """
    if weights.has(ANSWERS):  # The second token's row comes first.
        both = weights.take(ANSWERS, (2, config.hidden_size), torch.float32)
        return ops.of_inputs(ops.product((both[:1] - both[1:]).contiguous()))
    name = "embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    stored = weights.stored(name, (config.vocab_size, config.hidden_size))
    rows = torch.empty(2, 1, config.hidden_size)
    for row, token in zip(rows, answers, strict=True):
        stored.row_range(range(token, token + 1)).read_into(row)
    return ops.of_inputs(ops.product((rows[1] - rows[0]).to(weights.device)))


def _dense(
    weights: Weights, name: str, outputs: int, inputs: int, ops: HeadOps, *, bias: bool = True
) -> Product:
    matrix = weights.take(f"{name}.weight", (outputs, inputs), torch.float32)
    added = weights.take(f"{name}.bias", (outputs,), torch.float32) if bias else None
    return ops.product(matrix, added)


def load_dense(layers: tuple[DenseLayer, ...], ops: HeadOps = VECTORS) -> Head:
    """Reads the dense layers that an input's vector, or with ROWS each of its rows, goes through
    (sentence-transformers' Dense). Returns what maps the first's inputs to the last's outputs, on
    the host, in float32 and for one input at a time. Raises UnsupportedModel or ModelNotFound."""
    steps = [_dense_layer(layer, ops) for layer in layers]

    def through(vector: Tensor) -> Tensor:
        for step in steps:
            vector = step(vector)
        return vector

    return through


def _own_name(layer: DenseLayer, name: str) -> str | None:
    """Returns a tensor's name in a file that may hold the layer alone, or others, too."""
    if not layer.alone:
        return name if name.startswith(f"{layer.name}.") else None
    return f"{layer.name}.{name}" if name in ("weight", "bias") else name


def _dense_layer(layer: DenseLayer, ops: HeadOps) -> Head:
    own = f"{layer.name}."
    if layer.name in DENSE_TENSORS:
        of_file = named_tensors((layer.file,))
        found = {name: each for name, each in of_file.items() if name.startswith(own)}
    else:
        found = safetensors_tensors((layer.file,), partial(_own_name, layer))
    weights = Weights(found, torch.float32)
    product = _dense(weights, layer.name, layer.outputs, layer.inputs, ops, bias=layer.bias)
    skip = _skip(layer, weights, ops)
    weights.finish()

    def through(x: Tensor) -> Tensor:
        made = torch.tanh(product(x)) if layer.activation == "tanh" else product(x)
        return made if skip is None else made + skip(x)

    return through


def _skip(layer: DenseLayer, weights: Weights, ops: HeadOps) -> Head | None:
    """Returns what is added to what the layer gives; None: nothing."""
    if not layer.residual:
        return None
    if layer.inputs == layer.outputs:
        return lambda x: x
    return _dense(weights, "residual", layer.outputs, layer.inputs, ops, bias=False)
