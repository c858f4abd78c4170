"""What a response may know of the connection that it goes out on."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope

ROOM = "penstock.room"
"""Key of the connection's Room in a scope's state."""

Piece = bytes | bytearray
"""A piece of a response's body. Who hands one over leaves it as it is."""


def nowhere(piece: Piece) -> bool:
    """A Room's `write` where there is no connection."""
    return False


def apart(put: Callable[[], None]) -> None:
    """A Room's `together` there."""
    put()


class Room:
    """What a response may know of its connection."""

    __slots__ = ("full", "together", "write")

    def __init__(
        self,
        *,
        full: bool,
        write: Callable[[Piece], bool] = nowhere,
        together: Callable[[Callable[[], None]], None] = apart,
    ) -> None:
        self.full = full
        """A send would wait for the client to read."""
        self.write = write
        """Puts a piece of the body that is being sent straight onto the connection, past all layers
        of the application; False where it can't, and has written nothing."""
        self.together = together
        """Calls what it is given, and puts all that this sends onto the connection at once."""


def room_of(scope: Scope) -> Room:
    """The Room of a request's connection; one that is always full where the server doesn't tell."""
    found: Room | None = scope.get("state", {}).get(ROOM)
    return Room(full=True) if found is None else found


def take_room(scope: Scope, room: Room) -> None:
    """Gives a request a Room, where no connection of this module does."""
    scope.setdefault("state", {})[ROOM] = room
