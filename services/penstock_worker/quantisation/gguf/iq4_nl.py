"""IQ4_NL: blocks of 32 4-bit entries of a table, and a scale."""

from __future__ import annotations

from torch import Tensor

from penstock_kernels.triton.linear.gguf_weights import Layout
from penstock_worker.quantisation.gguf.blocks import gguf_format, half, nibbles
from penstock_worker.quantisation.gguf.nonlinear import IQ4, looked_up


def _values(blocks: Tensor) -> Tensor:
    return looked_up(nibbles(blocks[:, 2:]), IQ4)


def _decode(blocks: Tensor) -> Tensor:
    return half(blocks, 0).float() * _values(blocks).float()


def _split(blocks: Tensor) -> dict[str, Tensor]:
    return {"levels": _values(blocks)[:, None], "scales": half(blocks, 0)}


IQ4_NL = gguf_format("IQ4_NL", _decode, layout=Layout(8), split=_split, packed=True)
