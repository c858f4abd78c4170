"""One grammar, as the engine core knows it."""

from __future__ import annotations

import enum
import hashlib

from penstock.protocol.common import Grammar
from penstock_engine.request.request import Request, Sequence


class GrammarStage(enum.Enum):
    """Where a grammar is in its life."""

    WANTED = "wanted"
    COMPILING = "compiling"
    READY = "ready"
    GONE = "gone"


class GrammarEntry:
    """One grammar.

    number: its name between engine and worker.  holders: open requests that follow it.  tenant: of
    the first of those, who has it compiled.  started: when the worker was told to compile it.
    waiting: sequences that can't run before it is ready, in the order in which they came.
    deadline: when compiling it will have taken too long.  deaths: workers that it took along.
    answered: ranks that are done with compiling it.
    """

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
        self.number = number
        self.digest = digest
        self.definition = definition
        self.stage = GrammarStage.WANTED
        self.tenant = tenant
        self.holders: dict[Request, None] = {}
        self.waiting: dict[Sequence, None] = {}
        self.started = self.deadline = 0.0
        self.deaths = 0
        self.answered: set[int] = set()


def digest_of(definition: Grammar) -> bytes:
    """Equal for equal grammars."""
    return hashlib.sha256(f"{definition.kind}\0{definition.text}".encode()).digest()
