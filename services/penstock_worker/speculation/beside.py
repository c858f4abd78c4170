"""The target model and the model or head that drafts for it, as one Forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.process import logs
from penstock_worker.forward.heads import HeadForward
from penstock_worker.forward.interface import Batch, Forward, LikeliestForward
from penstock_worker.models.aux_hidden import AuxHidden
from penstock_worker.speculation.hidden_rows import HiddenRows

if TYPE_CHECKING:
    from torch import Tensor

log = logs.get(__name__)


class DraftPass(Protocol):
    """The part of `Forward` that a drafting model and a draft head have in common."""

    @property
    def layers_done(self) -> int:
        """Number of the drafting model's layers that have been computed (see Forward)."""

    def cancel(self) -> None:
        """Called when the worker stops: a pass may raise StepCancelled (see Forward)."""

    def kv_blocks(self) -> list[np.ndarray]:
        """Returns the KV memory of the drafting model's layers (see Forward)."""


@dataclass(frozen=True)
class HeadLayers:
    """The layers of a head as one DraftPass."""

    layers: Sequence[HeadForward]

    @property
    def layers_done(self) -> int:
        return sum(each.layers_done for each in self.layers)

    def cancel(self) -> None:
        for each in self.layers:
            each.cancel()

    def kv_blocks(self) -> list[np.ndarray]:
        return [part for each in self.layers for part in each.kv_blocks()]


def note_nothing(batch: Batch) -> None:
    """Does nothing: a drafting model reads tokens only, no hidden states."""


@dataclass(frozen=True)
class Beside:
    """A Forward of the target model and what drafts for it: logits are the target's, layers and
    KV blocks are both's."""

    served: Forward
    drafts: DraftPass
    groups: int = 1
    """Number of KV groups of the drafting model or head."""
    note: Callable[[Batch], None] = note_nothing
    """Called after each pass of the target model."""

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

    def likeliest(self, batch: Batch, rows: np.ndarray) -> np.ndarray:
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
    """Keeps the target model's hidden states of each pass, from which its draft head drafts."""

    head: HeadForward
    """The draft head's first layer."""
    aux_hidden: AuxHidden
    hidden: HiddenRows
    together: bool
    """Whether other ranks draft too, and must draft the same."""

    def note(self, batch: Batch) -> None:
        """Keeps the hidden states of the pass that has just ended. If they can't be read, the step
        goes on without drafts; it fails if other ranks draft too."""
        if not self.hidden.wants(batch):
            return
        try:
            self.hidden.note(batch, self.head.hidden(self.aux_hidden.taken(len(batch.tokens))))
        except Exception:
            if self.together:
                raise  # The other ranks have theirs.
            log.error("hidden states can't be read", exception=True, slots=len(batch.slots))
