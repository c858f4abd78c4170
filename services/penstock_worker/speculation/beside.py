"""The passes of a model that is served and of what drafts for it, as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock import logs
from penstock_worker.forward.heads import HeadForward
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.models.taps import Taps
from penstock_worker.speculation.hidden_rows import HiddenRows

log = logs.get(__name__)


@dataclass(frozen=True)
class BesideDraft:
    """Adapts the served model, which computes, to the interface `Forward` for both."""

    served: Forward
    draft: Forward
    groups: int  # The draft model's KV groups.

    @property
    def layers_done(self) -> int:
        return self.served.layers_done + self.draft.layers_done

    def cancel(self) -> None:
        self.served.cancel()
        self.draft.cancel()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        return self.served.logits(batch, rows)

    def kv_blocks(self) -> list[np.ndarray]:
        by_group = (np.split(part, self.groups) for part in self.draft.kv_blocks())
        return [*self.served.kv_blocks(), *(part for group in by_group for part in group)]


@dataclass(frozen=True)
class BesideHead:
    """Adapts the served model, which computes, to the interface `Forward` for both."""

    served: Forward
    head: HeadForward
    taps: Taps
    hidden: HiddenRows
    together: bool
    """Whether other ranks draft the same."""

    @property
    def layers_done(self) -> int:
        return self.served.layers_done + self.head.layers_done

    def cancel(self) -> None:
        self.served.cancel()
        self.head.cancel()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        logits = self.served.logits(batch, rows)
        self._note(batch)
        return logits

    def kv_blocks(self) -> list[np.ndarray]:
        return [*self.served.kv_blocks(), *self.head.kv_blocks()]

    def _note(self, batch: Batch) -> None:
        """A failure costs drafts, and the step nothing."""
        try:
            self.hidden.note(batch, self.head.hidden(self.taps.taken(len(batch.tokens))))
        except Exception:
            if self.together:
                raise  # The other ranks have theirs.
            log.error("hidden states can't be read", exception=True, slots=len(batch.slots))
