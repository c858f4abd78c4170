"""Which deaths of engine cores are held against a request."""

from __future__ import annotations

MOST_PENDING = 64
"""Lost engine cores that a request remembers at once, of which nobody knows yet what became."""


class Blame:
    """Deaths of engine cores that are held against one request.  Whether it may be told from a
    bystander is decided here and nowhere else.

    Suspected is only what had entered a step of an engine core and had gained nothing since, when
    the session with it was lost.  A session that ends is not a death yet: it is one when another
    life of an engine core answers at that place, and none when the same life does.  Until then the
    suspicion is pending; where nobody ever comes back there (a name may lead elsewhere), it stays
    so, and harms nobody.

    deaths: as Submit's: those that are certain, since the request last gained something.
    """

    __slots__ = ("_entered", "_pending", "deaths")

    def __init__(self) -> None:
        self.deaths = 0
        self._entered = False
        self._pending: dict[str, str] = {}
        """Boots of lost engine cores, by endpoint."""

    def entered(self) -> None:
        """The engine core that has it says that one of its sequences is in a step."""
        self._entered = True

    def left(self) -> None:
        """Notes that none of the request's sequences is in a step any more: all wait again."""
        self._entered = False

    def gained(self) -> None:
        """Clears the request of all blame: it has got a token, so it is past whatever killed an
        engine core."""
        if self._entered or self._pending or self.deaths:
            self._entered = False
            self._pending.clear()
            self.deaths = 0

    def lost(self, endpoint: str, boot: str | None, *, innocent: bool) -> None:
        """The session that it ran in has ended. boot: of the engine core there; None: not known.
        innocent: it is known that nobody has died of anything that ran."""
        suspected, self._entered = self._entered, False
        if suspected and not innocent and boot and len(self._pending) < MOST_PENDING:
            self._pending[endpoint] = boot

    def answered(self, endpoint: str, boot: str) -> None:
        """An engine core has come at `endpoint`, in the life `boot`."""
        if not self._pending:
            return
        # That life goes on, wherever it was met before.
        self._pending = {place: life for place, life in self._pending.items() if life != boot}
        if self._pending.pop(endpoint, None) is not None:
            self.deaths += 1
