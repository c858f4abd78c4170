"""Interfaces of weight formats, and of what backends multiply with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from penstock_kernels.cpu.matrix import MatrixKind
from penstock_kernels.triton.linear.gguf_weights import Layout

if TYPE_CHECKING:
    from torch import Tensor


class Product(Protocol):
    """A matrix with its bias, in the form that its kernel needs."""

    def __call__(self, x: Tensor) -> Tensor:
        """Maps [rows, inputs] to [rows, outputs], each row independently."""


class Table(Protocol):
    """A matrix whose rows are looked up, such as an embedding."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def __call__(self, ids: Tensor) -> Tensor:
        """Returns the rows with these ids, [n, size] in the activations' dtype. `ids` is [n] int64,
        each below `rows`."""


class KeptMatrix(Protocol):
    """A matrix, [outputs, inputs], that stays quantised on a GPU as it is in its file."""

    @property
    def outputs(self) -> int: ...

    def product(
        self, bias: Tensor | None, dtype: torch.dtype | None, *, batch_invariant: bool
    ) -> Product:
        """`bias` is [outputs]. `dtype` is that of the result; None for the input's."""

    def table(self, dtype: torch.dtype) -> Table:
        """`dtype` is that of the rows."""


class KeptForm(NamedTuple):
    """How Triton kernels hold a quantised format: the file's numbers, in another order."""

    layout: Layout
    """How the numbers are decoded."""
    split: Callable[[Tensor], dict[str, Tensor]]
    """Maps uint8 [blocks, bytes] to the tensors of GGUFWeights by name, each [blocks, groups or
    units, …]."""


class Groups(NamedTuple):
    """Blocks as levels with scales: a value is scale * level + minimum, exact in float32."""

    levels: Tensor
    """[blocks, groups, inputs of a group], int8; with minima uint8, at most 15."""
    scales: Tensor
    """[blocks, groups] float32."""
    minima: Tensor | None = None
    """[blocks, groups] float32; None: there are none."""


class GroupedForm(NamedTuple):
    """How the CPU kernels hold a format that they can't unpack themselves."""

    read: Callable[[Tensor], Groups]
    """Maps uint8 [blocks, bytes] to groups of 16 or 32."""
    kind: MatrixKind
    """S8W16, or with minima one of U4."""


class StoredFormat(NamedTuple):
    """How a weight file stores elements, in blocks of bytes."""

    name: str
    """The type's name in GGUF or safetensors."""
    elements: int
    """Elements per block."""
    bytes: int
    """Bytes per block."""
    decode: Callable[[Tensor], Tensor]
    """Maps uint8 [blocks, bytes] to [blocks, elements], in float32, or for a plain format in its
    own dtype. The reference computes with the result, as does any backend without a product for the
    format."""
    plain: bool = False
    """Whether elements are floating-point numbers, which may be quantised on load."""
    packed: bool = False
    """Whether the CPU kernels can pack it without decoding
    (penstock_kernels.cpu.matrix.SOURCES)."""
    kept: KeptForm | None = None
    """How Triton kernels hold it; None if it is decoded on load."""
    grouped: GroupedForm | None = None
    """How the CPU kernels hold it, if they can't unpack it (`packed`)."""


@dataclass(frozen=True)
class Quantization:
    """A value of the setting `quantization`: what floating-point matrices become on load."""

    name: str
    triton: Callable[[Tensor, Tensor | None, bool], Product | None]
    """Maps (weight [outputs, inputs] on the device, bias [outputs], batch_invariant) to a product;
    None if this matrix stays unquantised."""
    cpu: MatrixKind | None = None
    """What the CPU kernels pack matrices as; None if they can't."""
    capability: tuple[int, int] = (0, 0)
    """Lowest compute capability of a GPU that supports it."""


def _plain(name: str, size: int, dtype: str) -> StoredFormat:
    """Unquantised floating-point formats, with one element per block."""

    def decode(blocks: Tensor) -> Tensor:
        return blocks.view(getattr(torch, dtype))

    return StoredFormat(name, 1, size, decode, plain=True, packed=True)


F32 = _plain("F32", 4, "float32")
F16 = _plain("F16", 2, "float16")
BF16 = _plain("BF16", 2, "bfloat16")
