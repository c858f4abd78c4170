"""Fills templates in the process that asks: for one whose work is bounded as a renderer's is."""

from __future__ import annotations

import msgspec

from penstock.text.render.child import Renderer
from penstock.text.render.pool import checked
from penstock.text.render.process import packed
from penstock.text.render.wire import Fill, Filled, TemplateSource


class LocalRenderer:
    """In place of a RenderPool. A template that stalls ends the process, by its own bounds."""

    def __init__(self) -> None:
        self._renderer = Renderer()
        self._decoder = msgspec.msgpack.Decoder(Fill)
        self._known: set[int] = set()

    def filled(self, source: TemplateSource, fill: Fill) -> Filled:
        """Returns the filled template, like RenderPool.filled."""
        given = None if fill.template in self._known else source
        # By way of bytes: a template gets what it would get in another process.
        payload = packed(msgspec.structs.replace(fill, source=given))
        self._known.add(fill.template)
        return checked(self._renderer.answer(bytearray(payload), self._decoder), fill.max_length)

    async def filled_async(self, source: TemplateSource, fill: Fill) -> Filled:
        """Returns the filled template, like RenderPool.filled_async."""
        return self.filled(source, fill)
