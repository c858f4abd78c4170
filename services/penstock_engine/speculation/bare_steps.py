"""Steps without drafts among those with, so that it stays known what they take."""

from __future__ import annotations

FIRST, RENEW, BARE = 8, 64, 2
"""After so many steps with drafts, twice as many each time up to the second number, so many have
none: what these take is what those are compared with."""

OTHERS = 1.25
"""How many times as many or as few sequences make it begin anew: little is known of their steps."""


class BareSteps:
    """When they are due. At first often: what steps took when requests came and prompts were
    computed may have been more than they take by themselves."""

    __slots__ = ("_decodes", "_drafted", "_every", "_left")

    def __init__(self) -> None:
        self._every = FIRST
        self._drafted = 0
        """Steps with drafts since the last without that were due; there may be others between."""
        self._left = 0  # that are due
        self._decodes = 0  # of steps that it began with

    def due(self) -> bool:
        """Whether the next step is one; then it is counted."""
        if self._drafted >= self._every:
            self._drafted, self._left = 0, BARE
            self._every = min(2 * self._every, RENEW)
        if not self._left:
            return False
        self._left -= 1
        return True

    def drafted(self, decodes: int) -> None:
        """A step of so many decodes gets drafts."""
        self._drafted += 1
        if not self._decodes / OTHERS <= decodes <= self._decodes * OTHERS:
            self._decodes, self._every = decodes, FIRST
