"""The renderer process: fills one template at a time, until its socket is closed.

Bounds: an address space of so many bytes, and CPU seconds for each filling; the timer's signal has
no handler, so it ends the process even where Python code would never look.
"""

from __future__ import annotations

import gc
import signal

import jinja2
import msgspec

from penstock.frames import read_frame, write_frame
from penstock.isolated.child import SOCKET, begin, confine
from penstock.process_memory import resident_bytes
from penstock.text.jinja_environment import make_environment
from penstock.text.render.wire import MAX_FRAME, Bounds, Fill, Filled

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
        self._templates: dict[int, jinja2.Template | Filled] = {}

    def answer(self, frame: bytearray, decoder: msgspec.msgpack.Decoder[Fill]) -> Filled:
        """Never raises: what goes wrong in a template is an answer too."""
        try:
            fill = decoder.decode(frame)
            frame.clear()
            template = self._template(fill)
            return template if isinstance(template, Filled) else _filled(template, fill)
        except MemoryError:
            return Filled("memory", "")
        except jinja2.TemplateError as error:
            return Filled("refused", _complaint(error))
        except Exception as error:  # the template is a foreign program: anything may come
            return Filled("failed", f"{type(error).__name__}: {_complaint(error)}")

    def _template(self, fill: Fill) -> jinja2.Template | Filled:
        if fill.forget:
            self._templates.clear()
        if fill.source is not None:
            self._templates[fill.template] = self._compiled(fill.source)
        return self._templates[fill.template]

    def _compiled(self, source: str) -> jinja2.Template | Filled:
        try:
            return self._environment.from_string(source)
        except Exception as error:
            return Filled("uncompilable", _complaint(error) or type(error).__name__)


def _filled(template: jinja2.Template, fill: Fill) -> Filled:
    pieces: list[str] = []
    length = 0
    variables = fill.variables
    if isinstance(variables, bytes):
        variables = msgspec.json.decode(variables)
    for piece in template.generate(variables):
        length += len(piece)
        if length > fill.max_length:
            return Filled("too_long", "")
        pieces.append(piece)
    text = "".join(pieces)
    text.encode()  # An answer must be Unicode.
    return Filled("text", text)


def _complaint(error: Exception) -> str:
    return str(error).encode("utf-8", "replace").decode()[:MAX_COMPLAINT]
