"""A choice of an unstreamed reply."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.protocol.common import TokenLogprobs


@dataclass(slots=True)
class ChoiceOutput:
    """A choice of an unstreamed reply, which grows with each delta."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    begun: int | None = None
    """When its first delta came, by time.perf_counter_ns."""

    def add(self, delta: SequenceDelta) -> None:
        """Takes the choice's next delta."""
        if self.begun is None:
            self.begun = time.perf_counter_ns()
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
