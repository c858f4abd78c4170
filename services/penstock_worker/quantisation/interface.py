"""What a format of weights is, and what a backend multiplies with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from penstock_kernels.cpu.matrix import MatrixKind
from penstock_kernels.triton.linear.gguf_weights import Layout


class Product(Protocol):
    """A matrix with its bias, in the form that its kernels want."""

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, inputs] -> [rows, outputs], each row by itself."""


class Table(Protocol):
    """Rows that are looked up."""

    @property
    def rows(self) -> int:
        """How many there are."""

    def __call__(self, ids: Tensor) -> Tensor:
        """ids: [n] int64, each below `rows` -> [n, size], of the activations' dtype."""


class KeptMatrix(Protocol):
    """A matrix [outputs, inputs] that a GPU holds as its file has it."""

    @property
    def outputs(self) -> int: ...

    def product(
        self, bias: Tensor | None, dtype: torch.dtype | None, *, batch_invariant: bool
    ) -> Product:
        """bias: [outputs].  dtype: of the result; None: the input's."""

    def table(self, dtype: torch.dtype) -> Table:
        """dtype: of the rows."""


class KeptForm(NamedTuple):
    """How the Triton kernels keep a quantised format: its own numbers, in another order."""

    layout: Layout
    """What the numbers mean."""
    split: Callable[[Tensor], dict[str, Tensor]]
    """uint8 [blocks, bytes] -> the tensors of GGUFWeights by name, each [blocks, groups or units,
    …]."""


class StoredFormat(NamedTuple):
    """How a weight file stores elements: blocks of bytes."""

    name: str
    """As GGUF and safetensors call the type."""
    elements: int
    """Of a block."""
    bytes: int
    """Of a block."""
    decode: Callable[[Tensor], Tensor]
    """uint8 [blocks, bytes] -> [blocks, elements], float32 or, of a plain format, its own dtype.
    It is what the reference computes with, and any backend that has no product of its own."""
    plain: bool = False
    """Whether elements are floating-point numbers, which may be quantised when they are loaded."""
    packed: bool = False
    """Whether the CPU kernels pack it as it is (penstock_kernels.cpu.matrix.SOURCES)."""
    kept: KeptForm | None = None
    """How the Triton kernels multiply with it; None: it is decoded when it is loaded."""


@dataclass(frozen=True)
class Quantization:
    """What matrices of floating-point numbers become when they are loaded: a value of the setting
    `quantization`."""

    name: str
    triton: Callable[[Tensor, Tensor | None, bool], Product | None]
    """(weight [outputs, inputs] on the device, bias [outputs], batch_invariant) -> its product;
    None: this matrix stays as it is."""
    cpu: MatrixKind | None = None
    """What the CPU kernels pack matrices as; None: they can't."""
    capability: tuple[int, int] = (0, 0)
    """Least compute capability of a GPU."""
