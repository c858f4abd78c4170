"""What can't be served."""

from __future__ import annotations


class Unservable(Exception):
    """A part of a schema can't be served exactly. The message is for the client, without the
    place."""
