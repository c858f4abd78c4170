"""Errors of communication between ranks."""

from __future__ import annotations


class GroupLost(Exception):
    """The group of ranks can't form or can't continue, because a rank is gone or this rank's
    session has ended. All ranks of the group fail together; the engine core has them form a new
    one."""
