"""8-bit weights (signed) with a scale per group of inputs."""

from __future__ import annotations

from functools import partial

from penstock_kernels.cpu.matrix import MatrixKind
from penstock_worker.quantisation.interface import Quantization
from penstock_worker.quantisation.packed import packed_product

INT8 = Quantization("int8", partial(packed_product, "int8", 8), cpu=MatrixKind.S8H)
