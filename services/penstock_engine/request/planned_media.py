"""What a plan says of media."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.to_worker import PartlyEncoded
from penstock_engine.request.request import Sequence


@dataclass(slots=True)
class PlannedMedia:
    """Items that a step encodes, to their end or partly, and drops."""

    encode: list[str] = field(default_factory=list)
    partly: list[PartlyEncoded] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    rows: int = 0
    """Rows of what is encoded; of an item that is encoded partly, in proportion."""
    work: int = 0
    """Work of what is encoded: see MediaReady."""
    needed_by: dict[Sequence, int] = field(default_factory=dict)
    """The running sequences that need these items, and how many tokens each has after the first
    that does. They have a part in the step, with or without tokens."""

    @property
    def encodes(self) -> bool:
        """Whether it is a step even without tokens."""
        return bool(self.encode or self.partly)
