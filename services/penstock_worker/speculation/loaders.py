"""Chooses what loads a model or a head that drafts beside the model that is served."""

from __future__ import annotations

from typing import Protocol

from penstock.model.config import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.batch.slots import Slots
from penstock_worker.forward.interface import Recipe
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.sampler.queued import QueuedSampler
from penstock_worker.speculation.draft_loading import DraftLoader
from penstock_worker.speculation.head_loading import HeadLoader
from penstock_worker.speculation.interface import Proposer


class LoadsDrafts(Protocol):
    """Loads what drafts."""

    @property
    def told(self) -> dict[str, str]:
        """What the log says of the drafts."""

    def recipe(self) -> Recipe:
        """Returns the recipe of both models."""

    @property
    def served_parts(self) -> int:
        """How many of `kv_blocks`, on a device of `blocks`, are the served model's, once the
        recipe's forward pass has been made. They come first."""

    def proposer(self, slots: Slots, sampler: QueuedSampler, host_blocks: int) -> Proposer:
        """Returns the proposer, once the recipe's forward pass has been made. `sampler`: that of
        the served model."""


def draft_loader(
    prepared: PreparedModel, served: Recipe, setup: Setup, threads: int, ranks: Ranks
) -> LoadsDrafts | None:
    """Returns what loads the draft model or the head that `setup` asks for; None if it asks for
    none. `prepared`, `served`: of the model that is served. Raises StartupError."""
    method = None if setup.speculation is None else setup.speculation.method
    if method == "draft_model":
        return DraftLoader(prepared, served, setup, threads, ranks)
    if method in ("eagle3", "mtp"):
        return HeadLoader(prepared, served, setup, threads, ranks)
    return None
