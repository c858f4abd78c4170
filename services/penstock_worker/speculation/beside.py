"""The passes of a model that is served and of what drafts for it, as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from penstock.process import logs
from penstock_worker.forward.heads import HeadForward
from penstock_worker.forward.interface import Batch, Forward, LikeliestForward
from penstock_worker.models.taps import Taps
from penstock_worker.speculation.hidden_rows import HiddenRows

log = logs.get(__name__)


class DraftPass(Protocol):
    """What a model and a head that draft have in common."""

    @property
    def layers_done(self) -> int:
        """What Forward.layers_done is, for what drafts."""

    def cancel(self) -> None:
        """Does what Forward.cancel does."""

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns what Forward.kv_blocks does."""


def note_nothing(batch: Batch) -> None:
    """A model that drafts reads tokens alone."""


@dataclass(frozen=True)
class Beside:
    """Adapts the served model, which computes, to the interface `Forward` for both."""

    served: Forward
    drafts: DraftPass
    groups: int = 1
    """KV groups of what drafts."""
    note: Callable[[Batch], None] = note_nothing
    """Called after each of the served model's passes."""

    @property
    def layers_done(self) -> int:
        return self.served.layers_done + self.drafts.layers_done

    def cancel(self) -> None:
        self.served.cancel()
        self.drafts.cancel()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        logits = self.served.logits(batch, rows)
        self.note(batch)
        return logits

    @property
    def finds_likeliest(self) -> bool:
        return isinstance(self.served, LikeliestForward) and self.served.finds_likeliest

    def likeliest(self, batch: Batch, rows: np.ndarray) -> Tensor:
        if not isinstance(self.served, LikeliestForward):
            raise TypeError(f"{type(self.served).__name__} gives only logits")
        tokens = self.served.likeliest(batch, rows)
        self.note(batch)
        return tokens

    def kv_blocks(self) -> list[np.ndarray]:
        by_group = (np.split(part, self.groups) for part in self.drafts.kv_blocks())
        return [*self.served.kv_blocks(), *(part for group in by_group for part in group)]


@dataclass(frozen=True)
class HiddenNotes:
    """Keeps what each pass of the served model leaves for its head."""

    head: HeadForward
    taps: Taps
    hidden: HiddenRows
    together: bool
    """Whether other ranks draft the same."""

    def note(self, batch: Batch) -> None:
        """A failure costs drafts, and the step nothing."""
        try:
            self.hidden.note(batch, self.head.hidden(self.taps.taken(len(batch.tokens))))
        except Exception:
            if self.together:
                raise  # The other ranks have theirs.
            log.error("hidden states can't be read", exception=True, slots=len(batch.slots))
