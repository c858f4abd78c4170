"""The engine core's record of one grammar."""

from __future__ import annotations

import enum
import hashlib

from penstock.protocol.common import Grammar
from penstock_engine.request.request import Request, Sequence


class GrammarStage(enum.Enum):
    """The stage of a grammar in its life."""

    WANTED = "wanted"
    COMPILING = "compiling"
    READY = "ready"
    GONE = "gone"


class GrammarEntry:
    """The engine core's record of one grammar."""

    __slots__ = (
        "answered",
        "deadline",
        "deaths",
        "definition",
        "digest",
        "holders",
        "number",
        "stage",
        "started",
        "tenant",
        "waiting",
    )

    def __init__(self, number: int, digest: bytes, definition: Grammar, tenant: str) -> None:
        self.number = number  # its name between engine and worker
        self.digest = digest
        self.definition = definition
        self.stage = GrammarStage.WANTED
        self.tenant = tenant  # whose requests share it, and to whom its compilation is charged
        self.holders: dict[Request, None] = {}
        """Open requests that follow it."""
        self.waiting: dict[Sequence, None] = {}
        """Sequences that can't run before it is ready, in the order in which they came."""
        self.started = 0.0  # when the worker was asked to compile it
        self.deadline = 0.0  # when compiling it will have taken too long
        self.deaths = 0  # workers that died while they compiled it
        self.answered: set[int] = set()
        """Ranks that are done with compiling it."""

    @property
    def key(self) -> tuple[str, bytes]:
        """Tenant and digest, by which requests find it."""
        return self.tenant, self.digest


def digest_of(definition: Grammar) -> bytes:
    """Equal for equal grammars."""
    return hashlib.sha256(f"{definition.kind}\0{definition.text}".encode()).digest()
