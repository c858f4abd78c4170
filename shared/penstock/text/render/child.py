"""The renderer process: fills one template at a time, until its socket is closed.

Bounds: an address space of so many bytes, and CPU seconds for each filling; the timer's signal has
no handler, so it ends the process even where Python code would never look.
"""

from __future__ import annotations

import gc
import signal
from typing import Any

import jinja2
import msgspec

from penstock.errors import InvalidRequest
from penstock.process.isolated_child import SOCKET, begin, confine, read_frame, write_frame
from penstock.process.memory import resident_bytes
from penstock.text.as_written import read_texts
from penstock.text.continuation import cut, mark_last
from penstock.text.disarm import Disarmed, disarm
from penstock.text.jinja_environment import TemplateEnvironment, make_environment
from penstock.text.render.wire import MAX_FRAME, Bounds, Fill, Filled, TemplateSource

MAX_COMPLAINT = 2000
LARGE = 96 << 20
"""Bytes of memory from which on the process gives way to a new one."""


def main(parent: int, bounds: bytes) -> None:
    """parent: the front end's pid.  bounds: Bounds as JSON."""
    begin(parent, "template")
    limits = msgspec.json.decode(bounds, type=Bounds)
    confine(limits.memory)
    gc.freeze()
    renderer = Renderer()
    decoder = msgspec.msgpack.Decoder(Fill)
    while (frame := read_frame(SOCKET, MAX_FRAME)) is not None:
        signal.setitimer(signal.ITIMER_PROF, limits.cpu)
        answer = renderer.answer(frame, decoder)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if (resident_bytes() or 0) > LARGE:
            answer = msgspec.structs.replace(answer, leaving=True)
        write_frame(SOCKET, msgspec.msgpack.encode(answer))
        if answer.leaving:
            return


class Renderer:
    """Keeps the templates that it was given, compiled."""

    def __init__(self) -> None:
        self._environment = make_environment()
        self._templates: dict[int, tuple[jinja2.Template | Filled, TemplateSource]] = {}

    def answer(self, frame: bytearray, decoder: msgspec.msgpack.Decoder[Fill]) -> Filled:
        """Fills a template, and never raises: an error in a template is an answer too."""
        try:
            fill = decoder.decode(frame)
            frame.clear()
            template, source = self._template(fill)
            if isinstance(template, Filled):
                return template
            return _filled(self._environment, template, source, fill)
        except MemoryError:
            return Filled("memory", "")
        except InvalidRequest as error:
            return Filled("invalid", error.message, param=error.param)
        except jinja2.TemplateError as error:
            return Filled("refused", _complaint(error))
        except Exception as error:  # the template is a foreign program: anything may come
            return Filled("failed", f"{type(error).__name__}: {_complaint(error)}")

    def _template(self, fill: Fill) -> tuple[jinja2.Template | Filled, TemplateSource]:
        if fill.forget:
            self._templates.clear()
        if fill.source is not None:
            self._templates[fill.template] = self._compiled(fill.source.text), fill.source
        return self._templates[fill.template]

    def _compiled(self, source: str) -> jinja2.Template | Filled:
        try:
            return self._environment.from_string(source)
        except Exception as error:
            return Filled("uncompilable", _complaint(error) or type(error).__name__)


def _filled(
    environment: TemplateEnvironment, template: jinja2.Template, source: TemplateSource, fill: Fill
) -> Filled:
    given = fill.variables
    if isinstance(given, bytes):
        given = msgspec.json.decode(given)
    read_texts(given.get("messages") or [], fill.written)
    disarmed = Disarmed(given, {})
    if fill.apart:
        disarmed = disarm(given, source.special, source.text)
    variables = {**source.tokens, **disarmed.values}
    if fill.continued:
        variables = {**variables, "messages": mark_last(variables["messages"])}
    with environment.running(variables, fill.now):
        text = _text(template, variables, fill.max_length)
    if text is None:
        return Filled("too_long", "")
    if fill.continued:
        text = cut(text, disarmed.values["messages"])
    return Filled("text", text, stand_ins=disarmed.stand_ins)


def _text(template: jinja2.Template, variables: dict[str, Any], most: int) -> str | None:
    """The filled template; None if it is longer than `most` characters."""
    pieces: list[str] = []
    length = 0
    for piece in template.generate(variables):
        length += len(piece)
        if length > most:
            return None
        pieces.append(piece)
    text = "".join(pieces)
    text.encode()  # An answer must be Unicode.
    return text


def _complaint(error: Exception) -> str:
    return str(error).encode("utf-8", "replace").decode()[:MAX_COMPLAINT]
