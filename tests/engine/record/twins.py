"""A core and its restored copy, told the same; whatever they send must be equal, byte for byte."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from penstock_engine.core import EngineCore
from penstock_engine.record.events import READERS, STEP, public_methods
from penstock_engine.sessions.effects import Effects


def encoded(effects: Effects) -> bytes:
    fields = [getattr(effects, field.name) for field in dataclasses.fields(effects)]
    return msgspec.msgpack.encode(fields, enc_hook=lambda chunk: bytes(chunk.data))


class Twins:
    """Has a core's methods; everything else is the original's."""

    def __init__(self, original: EngineCore, copy: EngineCore) -> None:
        self.original = original
        self.copy = copy
        self.steps = 0
        for name in public_methods():
            if name not in (*READERS, STEP):
                setattr(self, name, self._both(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def _both(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            getattr(self.original, name)(*arguments)
            getattr(self.copy, name)(*arguments)

        return call

    def step(self, now: float) -> Effects:
        self.steps += 1
        effects, other = self.original.step(now), self.copy.step(now)
        assert encoded(effects) == encoded(other)
        self.check_deadlines()
        self.copy.check()
        return effects

    def check_deadlines(self) -> None:
        assert self.original.next_deadline() == self.copy.next_deadline()
