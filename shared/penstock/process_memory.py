"""What memory this process has."""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int | None:
    """By Linux's /proc; None elsewhere. Not getrusage's peak, which a process inherits from the one
    it is forked off."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None
