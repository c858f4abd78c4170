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
    residual: bool = False
    """Whether what goes in is added to what comes out: as it is, or where sizes differ by way of
    the matrix `residual`.weight."""


class PairTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """What surrounds a query and a document in the prompt of a generative cross-encoder.

    instruction: what makes a document a good one; a request may give its own.  system: not empty
    where the model's own template makes the prompt, of this system message and a user's with all
    the rest, which may hold pictures; the answer begins after them."""

    before: str
    instruction: str
    query: str
    document: str
    behind: str = ""
    system: str = ""

    def opening(self, instruction: str | None = None) -> str:
        """What stands in front of the query. instruction: None: the model's own."""
        own = self.instruction if instruction is None else instruction
        return f"{self.before}{own}{self.query}"

    def filled(self, query: str, document: str, instruction: str | None = None) -> str:
        return f"{self.opening(instruction)}{query}{self.document}{document}{self.behind}"


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
    skipped: tokens of documents that aren't compared.  skips_first: nor is any text's first one.
    dense: what makes a token's vector, of `size` numbers.  alone: whether texts have only vectors
    of tokens, so that they are compared by these.
    """

    dense: tuple[DenseLayer, ...]
    size: int
    alone: bool = True

    query_prefix: int | None = None
    document_prefix: int | None = None
    query_length: int = 0
    filling: int = 0
    sees_filling: bool = False
    skipped: tuple[int, ...] = ()
    skips_first: bool = False

    @property
    def hides(self) -> bool:
        """Whether a query has tokens that no token sees."""
        return self.query_length > 0 and not self.sees_filling


class SparseWeights(msgspec.Struct, frozen=True, kw_only=True):
    """How a weight for each token of the vocabulary is made: by the head that fills in masked words
    (SPLADE), or of the text's own tokens, of which the largest weight counts (BGE-M3).

    size: of the vocabulary.  adds: whether the text's tokens are summed up; else the largest
    counts.  twice: whether the logarithm is taken twice.  tokens: makes the weight of a token of
    the text; None: it is the head for words.  skipped: ids of tokens without a weight.
    """

    size: int
    adds: bool = False
    twice: bool = False
    tokens: DenseLayer | None = None
    skipped: tuple[int, ...] = ()


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
    late: how the vectors of tokens are made that are compared one by one; None: they are the last
    layer's output.  sparse: how weights of the vocabulary's tokens are made, if they are.
    by_token: whether each token has a label, not the text.
    prompts: name and text of what may stand in front of an input.
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
    sparse: SparseWeights | None = None
    by_token: bool = False
    prompts: tuple[tuple[str, str], ...] = ()

    @property
    def token_size(self) -> int:
        """Numbers of a token's vector."""
        if self.late is not None:
            return self.late.size
        return self.dense[0].inputs if self.dense else self.size

    def row_size(self, task: str) -> int:
        """Numbers that a task gives for each token; 0: it gives none for each token."""
        if task == "token_embed":
            return self.token_size
        return len(self.labels) if task == "token_classify" else 0

    def without_files(self) -> PoolingConfig:
        """What is said here, but for where files are."""
        late, sparse = self.late, self.sparse
        if late is not None:
            late = msgspec.structs.replace(late, dense=_bare(late.dense))
        if sparse is not None and sparse.tokens is not None:
            sparse = msgspec.structs.replace(sparse, tokens=_bare((sparse.tokens,))[0])
        return msgspec.structs.replace(self, dense=_bare(self.dense), late=late, sparse=sparse)

    @property
    def files(self) -> tuple[DenseLayer, ...]:
        """Layers that lie in files of their own."""
        late = () if self.late is None else self.late.dense
        tokens = None if self.sparse is None else self.sparse.tokens
        return (*self.dense, *late, *(() if tokens is None else (tokens,)))


def _bare(layers: tuple[DenseLayer, ...]) -> tuple[DenseLayer, ...]:
    return tuple(msgspec.structs.replace(layer, file="") for layer in layers)
