"""The phases that make the first layer's input of token ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.model.config import ModelConfig
from penstock_kernels.cpu.program import Buffer, Phase, PhaseKind
from penstock_worker.adapters.adaptable import EMBEDDING
from penstock_worker.forward.cpu.adapters import AdaptedPhases
from penstock_worker.forward.cpu.gates import product_into, residual_for
from penstock_worker.forward.cpu.split import Split
from penstock_worker.forward.cpu.weights import ModelWeights

TYPES = -1
"""Phase.first of a look-up by the tokens' types."""


def embedded(
    config: ModelConfig, weights: ModelWeights, split: Split, adapted: AdaptedPhases | None
) -> Iterator[Phase]:
    """Returns the phases of a rank that has the embedding. `adapted`: what adapters may change;
    None: nothing."""
    # Embeddings of another size than the layers' rows have a buffer of their own width.
    target = Buffer.RESIDUAL if weights.projection is None else Buffer.RESULT
    embed = Phase(
        kind=PhaseKind.EMBED,
        target=target,
        matrices=(weights.embedding,),
        scale=config.embedding_multiplier,
    )
    yield from split.embedded(embed if adapted is None else adapted.of_end(embed, EMBEDDING))
    tables = ((weights.positions, config.first_position), (weights.types, TYPES))
    for table, first in tables:
        if table is not None:
            yield Phase(kind=PhaseKind.LOOK_UP, target=target, matrices=(table,), first=first)
    if weights.embedding_norm is not None:
        norm = Phase(
            kind=PhaseKind.NORM, width=config.row_of_embedding, norm=weights.embedding_norm
        )
        yield replace(norm, source=target, target=target)
    if weights.projection is not None:
        made = residual_for(weights.projection, width=config.embedding_size)
        yield replace(made, source=target)
        yield product_into(weights.projection, Buffer.RESIDUAL)
