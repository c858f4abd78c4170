"""The process `penstock: media`: prepares one item at a time, until its socket is closed.

What it decodes is a stranger's, so it has a bound on memory, one on processor time for each item,
opens no file that isn't a library of its own, and starts no process.
"""

from __future__ import annotations

import os
import resource
import signal

import msgspec

from penstock.media.item_preparation import Unfit, prepare_item
from penstock.media.prepared import write
from penstock.media.wire import MAX_FRAME, Answer, Prepare, ProcessBounds
from penstock.process.isolated_child import SOCKET, begin, confine, read_frame, write_frame
from penstock.process.memory import resident_bytes

LARGE = 256 << 20
"""Bytes of memory from which on the process gives way to a new one."""


def main(parent: int, bounds: bytes) -> None:
    """parent: the front end's pid.  bounds: ProcessBounds as JSON."""
    begin(parent, "media")
    limits = msgspec.json.decode(bounds, type=ProcessBounds)
    _warm()
    confine(limits.memory)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    decoder = msgspec.msgpack.Decoder(Prepare)
    while (frame := read_frame(SOCKET, MAX_FRAME)) is not None:
        _allow(limits.cpu)
        answer = _answer(frame, decoder)
        frame = None
        _allow(0)
        if (resident_bytes() or 0) > LARGE:
            answer = msgspec.structs.replace(answer, leaving=True)
        _send(answer)
        if answer.leaving:
            return


def _send(answer: Answer) -> None:
    head = msgspec.structs.replace(answer, data=b"", follows=len(answer.data))
    write_frame(SOCKET, msgspec.msgpack.encode(head))
    rest = memoryview(answer.data)
    while rest:
        rest = rest[os.write(SOCKET, rest) :]


def _allow(seconds: float) -> None:
    """Ends this process after so many seconds of processor time; 0: never.

    The timer is the sharp bound.  RLIMIT_CPU, in whole seconds since the process began, stands
    by in reserve: a decoder that changes the timer changes nothing.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    if seconds:
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime + seconds) + 2
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


def _answer(frame: bytearray, decoder: msgspec.msgpack.Decoder[Prepare]) -> Answer:
    """Prepares an item, and never raises: an error in an item is an answer too."""
    try:
        task = decoder.decode(frame)
        frame.clear()
        arrays, shape = prepare_item(task)
        return Answer("prepared", write(arrays), shape)
    except MemoryError:
        return Answer("memory")
    except Unfit as error:
        return Answer("refused", reason=str(error))
    except Exception:  # A decoder's message about a client's bytes isn't passed on.
        return Answer("refused", reason="can't be prepared")


def _warm() -> None:
    """Loads the decoders, for which there may be no memory later."""
    from PIL import Image

    Image.preinit()
    Image.init()
