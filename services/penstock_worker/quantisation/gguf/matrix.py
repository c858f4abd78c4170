"""A matrix that stays quantised as it is in a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_worker.quantisation.interface import Product, Table

if TYPE_CHECKING:
    from torch import Tensor


class GGUFMatrix(GGUFWeights):
    """A KeptMatrix of GGUF weights."""

    def product(
        self, bias: Tensor | None, dtype: torch.dtype | None, *, batch_invariant: bool
    ) -> Product:
        # Imported here, because CPU installations have no triton.
        from penstock_worker.quantisation.gguf import product

        # A dtype is given for logits only, which unpacked weights would make less exact.
        exact = batch_invariant or dtype is not None
        many_rows = None if exact else product.UNPACKED_ROWS
        return product.GGUFProduct(self, bias, dtype, batch_invariant, many_rows)

    def table(self, dtype: torch.dtype) -> Table:
        from penstock_worker.quantisation.gguf.product import GGUFTable

        return GGUFTable(self, dtype)
