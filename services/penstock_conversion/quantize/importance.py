"""How much each column of a matrix matters: the mean square of its inputs while a model reads texts
(its importance matrix, in llama.cpp's words)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import UnsupportedModel
from penstock.model import mechanisms as mechanism
from penstock.model.config import ModelConfig
from penstock.model.mechanisms import mechanisms
from penstock.prepare import load_manifest
from penstock_conversion.quantize.scores import windows
from penstock_kernels.reference.tiling import padded_rows
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    BatchLayout,
    CacheShape,
    HeadNorms,
    Rotation,
    ScoreRule,
)
from penstock_worker.attention.reference import ReferenceAttention, normalised_and_rotated
from penstock_worker.attention.whole_sequence import WHOLE_SEQUENCE_MECHANISMS, attended
from penstock_worker.layers.reference_ops import ReferenceOps
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.quantisation.interface import Product, Table
from penstock_worker.weights.opening import open_weights
from penstock_worker.weights.weights import Matrix, plain

_DTYPE = torch.bfloat16
_BLOCK = 16
_QUICK = WHOLE_SEQUENCE_MECHANISMS | {mechanism.EXPERTS, mechanism.SHARED_EXPERT_GATE}
"""What plain attention computes; layers with others take the reference's, which is slower."""
_OUT_OF_REACH = mechanism.RECURRENT | {mechanism.CROSS_ATTENTION}


@dataclass(frozen=True)
class _Dense:
    """x @ weight.T + bias, as fast as torch has it."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class _QuickOps(ReferenceOps):
    """The reference's operations, whose products need not have equal bits in any batch."""

    def product(self, weight: Matrix, bias: Tensor | None = None) -> Product:
        return _Dense(plain(weight), bias)

    def head(self, weight: Matrix) -> Product:
        return _Dense(plain(weight), None)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = functional.rms_norm(x.float(), x.shape[-1:], weight.float(), eps)
        return wide.to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.rms_norm(residual.add_(x), weight, eps)


@dataclass(frozen=True)
class _QuickAttention:
    """Attention of one whole sequence, in torch's own operations."""

    count: int
    """Tokens of the sequence. Rows beyond are padding."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
        rule: ScoreRule = PLAIN_RULE,
    ) -> Tensor:
        query, key = normalised_and_rotated(query, key, rotation, norms)
        query_rows, key_rows, value_rows = (
            each[: self.count].float() for each in (query, key, value)
        )
        sinks = None if rule.sinks is None else rule.sinks.float()
        found = attended(query_rows, key_rows, value_rows, sinks, rule=rule).to(query.dtype)
        return functional.pad(found, (0, 0, 0, 0, 0, len(query) - self.count))


@dataclass
class Recorder:
    """Stands where a model's adapters would: it sees the input of each product, and adds
    nothing."""

    rows: int = 0
    """How many of a step's rows are tokens; others are padding."""
    sums: dict[str, Tensor] = field(default_factory=dict)
    """Sums of squares by module, [inputs] float64."""

    def adapted(self, product: Product, parts: Sequence[tuple[str, int]], inputs: int) -> Product:
        total = torch.zeros(inputs, dtype=torch.float64)
        self.sums |= {name: total for name, _ in parts}
        return _Observed(product, total, self)

    def embedding(self, table: Table) -> Table:
        return table

    def head(self, product: Product) -> Product:
        return product


@dataclass(frozen=True)
class _Observed:
    product: Product
    total: Tensor
    recorder: Recorder

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) >= self.recorder.rows:  # An expert's rows are fewer, and the recorder's are none.
            self.total.add_(x[: self.recorder.rows].double().square().sum(0))
        return self.product(x)


def importances(folder: Path, tokens: list[int], read: Callable[[int], None]) -> dict[str, Tensor]:
    """The mean square of each input of a model's products, by our names of modules, [inputs]
    float32. Takes the memory of the whole model in bfloat16.

    folder: a prepared model's.  read: called with the number of tokens that were computed.  Raises
    UnsupportedModel for a model whose layers can't be computed one text at a time.
    """
    prepared = load_manifest(folder)
    config = prepared.decoder
    if not isinstance(config, ModelConfig):
        raise UnsupportedModel(f"{prepared.name} is computed by transformers' code alone")
    beyond = mechanisms(config) & _OUT_OF_REACH
    if beyond:
        raise UnsupportedModel(
            f"{prepared.name} has {', '.join(sorted(beyond))}, with which --imatrix can't be used"
        )
    recorder, count = Recorder(), 0
    with torch.inference_mode():
        weights = open_weights(prepared.weights, config, _DTYPE)
        parts = windows(tokens, config.max_position)
        longest = max(map(len, parts))
        model = DecoderModel(config, weights, longest, ops=_QuickOps(), adapters=recorder)
        quick = mechanisms(config) <= _QUICK
        cache = ReferenceAttention(CacheShape.of(config, _BLOCK, _DTYPE), -(-longest // _BLOCK))
        for part in parts:
            recorder.rows = len(part)
            _compute(model, None if quick else cache, part)
            count += len(part)
            read(len(part))
    return {name: (total / count).float() for name, total in recorder.sums.items() if total.any()}


def _compute(model: DecoderModel, cache: ReferenceAttention | None, tokens: list[int]) -> None:
    """cache: of layers that quick attention doesn't compute."""
    count = len(tokens)
    padding = (0, padded_rows(count) - count)
    blocks = np.arange(-(-count // _BLOCK))
    layout = BatchLayout([blocks], np.array([0]), np.array([count]))
    model.hidden(
        torch.from_numpy(np.pad(np.array(tokens), padding)),
        torch.from_numpy(np.pad(layout.positions, padding)),
        _QuickAttention(count) if cache is None else cache.plan(layout),
        lambda: None,
    )
