"""The quantised types of GGUF files. A new one needs its line here."""

from __future__ import annotations

from penstock.formats.gguf_types import QUANTISED_TYPES
from penstock_worker.quantisation.gguf.block_quants import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from penstock_worker.quantisation.gguf.grid_quants import GRID_QUANTS
from penstock_worker.quantisation.gguf.k_quants import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from penstock_worker.quantisation.gguf.table_quants import IQ4_NL, IQ4_XS, MXFP4, NVFP4
from penstock_worker.quantisation.gguf.ternary_quants import TERNARY_QUANTS
from penstock_worker.quantisation.interface import StoredFormat

_BY_NAME: dict[str, StoredFormat] = {
    each.name: each
    for each in (
        *(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0),
        *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K),
        *(IQ4_NL, IQ4_XS, MXFP4, NVFP4),
        *GRID_QUANTS,
        *TERNARY_QUANTS,
    )
}

GGUF_FORMATS = tuple(_BY_NAME[name] for name in QUANTISED_TYPES)

__all__ = ["GGUF_FORMATS"]
