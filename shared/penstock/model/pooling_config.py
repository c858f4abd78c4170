"""How a pooling model makes vectors and classes of its last layer's output, as data."""

from __future__ import annotations

from typing import Literal

import msgspec

PoolingMode = Literal["mean", "max", "cls", "last"]
Activation = Literal["identity", "sigmoid", "softmax"]
DenseActivation = Literal["identity", "tanh"]


DENSE_TENSORS = ("dense_2", "dense_3")
"""Names of the layers in GGUF files, in their order."""


class DenseLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A product that an input's vector goes through before it is normalised
    (sentence-transformers' Dense)."""

    file: str
    """Has the matrix `name`.weight, [outputs, inputs], and with `bias` the vector `name`.bias:
    safetensors, or a GGUF file."""
    name: str = "linear"
    inputs: int
    outputs: int
    bias: bool = True
    activation: DenseActivation = "identity"
    alone: bool = True
    """Whether the file holds nothing else."""


class PairTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """What surrounds a query and a document in the prompt of a generative cross-encoder."""

    before: str
    between: str
    behind: str

    def filled(self, query: str, document: str) -> str:
        return f"{self.before}{query}{self.between}{document}{self.behind}"


class TextPadding(msgspec.Struct, frozen=True, kw_only=True):
    """Texts are filled up with a token until they are so long: it is a part of what the model sees
    (SigLIP)."""

    token: int
    length: int
    left: bool = False
    """Whether it stands before the text."""

    def filled(self, prompt_token_ids: list[int]) -> list[int]:
        """The prompt with padding up to `length` tokens; one that is as long already is
        unchanged."""
        filling = [self.token] * (self.length - len(prompt_token_ids))
        return filling + prompt_token_ids if self.left else prompt_token_ids + filling


class LateInteraction(msgspec.Struct, frozen=True, kw_only=True):
    """Queries and documents are compared token by token (ColBERT): what is done to either before
    it is computed. Tokens are named by their ids.

    query_prefix, document_prefix: what stands after the first token; None: nothing.
    query_length: tokens that a query is filled up to; 0: it isn't.  filling: the token that it is
    filled with.  sees_filling: whether other tokens see those; else they see the others only.
    skipped: tokens of documents that aren't compared.
    """

    query_prefix: int | None = None
    document_prefix: int | None = None
    query_length: int = 0
    filling: int = 0
    sees_filling: bool = False
    skipped: tuple[int, ...] = ()

    @property
    def hides(self) -> bool:
        """Whether a query has tokens that no token sees."""
        return self.query_length > 0 and not self.sees_filling


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the last layer's output, [tokens, hidden].

    mode: how the tokens' vectors become one.  normalize: to length 1, unless a request says
    otherwise.  size: numbers of an embedding.
    dimensions: lengths that an embedding may be cut to, where the model names them; empty: any.
    labels: of a classification head, in order; empty: there is none.  activation: of its scores.
    max_input: tokens that the model was made for, where its files say less than its positions.
    dense: what an embedding goes through.  padding: of texts; None: they are as long as they are.
    answers: ids of the tokens for no and yes: the one
    label's score is what the second's logit has more than the first's.  template: of their prompt.
    late: of a model whose embedding of a text is one vector for each token; None: it is one for the
    whole, and `dense` is for that.
    """

    mode: PoolingMode
    normalize: bool
    size: int
    dimensions: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    activation: Activation = "identity"
    max_input: int | None = None
    dense: tuple[DenseLayer, ...] = ()
    answers: tuple[int, int] | None = None
    template: PairTemplate | None = None
    padding: TextPadding | None = None
    late: LateInteraction | None = None

    @property
    def token_size(self) -> int:
        """Numbers of a token's vector."""
        return self.dense[0].inputs if self.dense and self.late is None else self.size
