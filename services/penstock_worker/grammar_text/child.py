"""The process that compiles each grammar before the worker does.

llguidance's own limits bound neither the time nor the memory of compiling (`multipleOf: 1000003`
takes 40 s, an intersection of three expressions gigabytes), and a thread can't be stopped.  A
process can.  It reads definitions from its socket and writes its verdicts there, each a length of
four bytes and msgpack.
"""

from __future__ import annotations

import json
import resource
import socket
import time
from itertools import islice
from typing import BinaryIO, cast

import msgspec

from penstock.protocol.common import Grammar
from penstock_worker.grammar_text.alternatives import PATIENCE, located
from penstock_worker.grammar_text.compile import Library
from penstock_worker.grammar_text.errors import GrammarError
from penstock_worker.grammar_text.structural_tag import schemas_of

MAX_BYTES = 2 * 2**30
"""The address space that the process may take, in bytes."""
STACK_BYTES = 2**20
"""Bytes of a fork's stacks; the worker's threads have 8 MiB."""

SCHEMAS_TRIED = 8
"""The schemas of a structural tag that are tried one by one, at most."""


class CompileResult(msgspec.Struct, frozen=True):
    """source: llguidance's text for the grammar; None where it can't be compiled.  reason: why."""

    source: str | None
    reason: str = ""


def serve(library: Library, connection: socket.socket) -> None:
    """Answers grammars that come through the connection, until the other end is closed."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    stream = cast("BinaryIO", connection.makefile("rwb"))
    while (message := receive(stream)) is not None:
        try:
            definition = msgspec.msgpack.decode(message, type=Grammar)
            result = CompileResult(_tried(library, definition))
        except GrammarError as error:
            result = CompileResult(None, str(error))
        except BaseException as error:  # A library written in Rust may panic: no Exception.
            result = CompileResult(None, f"{type(error).__name__}: {error}"[:500])
        send(stream, msgspec.msgpack.encode(result))


def _tried(library: Library, definition: Grammar) -> str:
    def compile(grammar: Grammar) -> str:
        source = library.source(grammar)
        library.probe(source)
        return source

    begun = time.process_time()
    if definition.kind == "structural_tag":
        # In a tag's free text, nothing is seen of what comes after it.
        for place, schema in islice(schemas_of(definition), SCHEMAS_TRIED):
            _tried_at(library, place, schema)
    try:
        return compile(definition)
    except GrammarError as error:
        if time.process_time() - begun > PATIENCE:
            raise
        if definition.kind == "structural_tag":
            for place, schema in schemas_of(definition):
                if time.process_time() - begun > PATIENCE:
                    break
                _tried_at(library, place, schema)
        raise GrammarError(located(definition, str(error), compile)) from None


def _tried_at(library: Library, place: str, schema: object) -> None:
    """A schema within a structural tag, by itself."""
    try:
        _tried(library, Grammar("json_schema", json.dumps(schema)))
    except GrammarError as error:
        raise GrammarError(f"at {place}: {error}" if place else str(error)) from None


def send(writer: BinaryIO, message: bytes) -> None:
    """Raises OSError where nobody reads."""
    writer.write(len(message).to_bytes(4, "big") + message)
    writer.flush()


def receive(reader: BinaryIO) -> bytes | None:
    """None at the end."""
    head = reader.read(4)
    if len(head) < 4:
        return None
    message = reader.read(int.from_bytes(head, "big"))
    return message
