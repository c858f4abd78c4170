"""Reading adapters of low rank (LoRA), without torch.

Source of the method: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021. A
module's product with the matrix W becomes W x + scale * B (A x), where A has few rows.
"""

from penstock.adapters.adapter import (
    AdaptedModule,
    Adapter,
    StoredFactor,
    UnfitAdapter,
    WholeTensor,
)
from penstock.adapters.reading import read_adapter

__all__ = [
    "AdaptedModule",
    "Adapter",
    "StoredFactor",
    "UnfitAdapter",
    "WholeTensor",
    "read_adapter",
]
