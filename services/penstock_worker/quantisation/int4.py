"""4-bit weights with a scale per group of inputs."""

from __future__ import annotations

from functools import partial

from penstock_worker.quantisation.interface import Quantization
from penstock_worker.quantisation.packed import packed_product

INT4 = Quantization("int4", partial(packed_product, "int4", 4))
