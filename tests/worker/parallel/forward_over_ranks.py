"""A forward pass over ranks: threads of one process, each with its rank's recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.parallel.ranks import Ranks
from tests.worker.cpu_model import CPUModel
from tests.worker.parallel.together import Formed


class ForwardOverRanks:
    """Computes as one Forward: every rank takes each batch, and the last stage's ranks must agree
    on every bit."""

    def __init__(
        self, formed: Formed, model: CPUModel, *, blocks: int | None = None, threads: int = 1
    ) -> None:
        self._formed = formed
        blocks = 32 * model.groups if blocks is None else blocks
        setup = model.setup(num_blocks=blocks, threads=threads)

        def build(ranks: Ranks) -> Forward:
            with torch.inference_mode():
                return choose(model.prepared(), setup, threads, ranks).build()(blocks)

        self.by_rank: dict[Ranks, Any] = dict(zip(formed.ranks, formed.each(build), strict=True))

    def logits(self, batch: Batch, rows: np.ndarray) -> torch.Tensor:
        def compute(ranks: Ranks) -> torch.Tensor | None:
            with torch.inference_mode():
                found = in_torch(self.by_rank[ranks].logits(batch, rows))
            assert len(found) == (len(rows) if ranks.place.last else 0)
            return found if ranks.place.last else None

        first, *others = (found for found in self._formed.each(compute) if found is not None)
        assert all(torch.equal(first, other) for other in others)
        return first
