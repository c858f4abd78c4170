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
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec

from penstock.protocol.common import Grammar
from penstock_grammars.structural_tag import parts_of
from penstock_worker.grammar.errors import GrammarError

if TYPE_CHECKING:
    from penstock_grammars.library import Library

MAX_BYTES = 2 * 2**30
"""The address space that the process may take, in bytes."""
STACK_BYTES = 2**20
"""Bytes of a fork's stacks; the worker's threads have 8 MiB."""

PARTS_TRIED = 8
"""The schemas and grammars of a structural tag that are tried one by one, at most."""


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
            result = CompileResult(tried(library, definition))
        except GrammarError as error:
            result = CompileResult(None, str(error))
        except BaseException as error:  # A library written in Rust may panic: no Exception.
            result = CompileResult(None, f"{type(error).__name__}: {error}"[:500])
        send(stream, msgspec.msgpack.encode(result))


def tried(library: Library, definition: Grammar, *, in_parts: bool = True) -> str:
    """llguidance's text for a grammar that can be compiled. in_parts: what a structural tag holds
    is compiled by itself, too, so that a complaint has its place.  Raises GrammarError."""

    def compile(grammar: Grammar) -> str:
        source = library.source(grammar)
        library.probe(source)
        return source

    begun = time.process_time()
    in_parts = in_parts and definition.kind == "structural_tag"
    if in_parts:
        # In a tag's free text, nothing is seen of what comes after it.
        for place, part in islice(parts_of(definition), PARTS_TRIED):
            _tried_at(library, place, part)
    try:
        return compile(definition)
    except GrammarError as error:
        if time.process_time() - begun > PATIENCE:
            raise
        if in_parts:
            for place, part in parts_of(definition):
                if time.process_time() - begun > PATIENCE:
                    break
                _tried_at(library, place, part)
        raise GrammarError(located(definition, str(error), compile)) from None


def _tried_at(library: Library, place: str, part: Grammar) -> None:
    """A schema or a grammar within a structural tag, by itself."""
    try:
        tried(library, part, in_parts=False)
    except GrammarError as error:
        raise GrammarError(f"at {place}: {error}" if place else str(error)) from None


def send(writer: BinaryIO, message: bytes) -> None:
    """Sends a message. Raises OSError where the reader is gone."""
    writer.write(len(message).to_bytes(4, "big") + message)
    writer.flush()


def receive(reader: BinaryIO) -> bytes | None:
    """None at the end."""
    head = reader.read(4)
    if len(head) < 4:
        return None
    message = reader.read(int.from_bytes(head, "big"))
    return message


# Which of several schemas is at fault, where the compiler's complaint doesn't say.
#
# A call that must be one of several tools' is an array of alternatives, each with a schema of the
# client's, and one that may be is alternatives alone: without its place a complaint is of no use.

PATHS = (("items", "anyOf"), ("anyOf",))
"""Paths in a schema at which alternatives are looked for."""
PATIENCE = 0.8
"""Seconds of the processor for all of it, and for the whole schema before: together they are a
trial, which may take more."""


def located(definition: Grammar, complaint: str, compile: Callable[[Grammar], object]) -> str:
    """The complaint about a grammar, with the place of the alternative that it is about, if it is
    alternatives or an array of them. compile: raises GrammarError."""
    if definition.kind != "json_schema":
        return complaint
    schema = json.loads(definition.text)
    path = next((path for path in PATHS if isinstance(_at(schema, path), list)), None)
    if path is None or (place := f"/{'/'.join(path)}/") in complaint:
        return complaint
    suspects = range(len(_at(schema, path)))
    end = time.process_time() + PATIENCE
    found = None
    # The first of them that fails, by halves: all of it costs about as much as the whole schema.
    while suspects:
        if time.process_time() > end:
            return complaint
        half = suspects[: (len(suspects) + 1) // 2]
        error = _error(_only(schema, path, half), compile)
        if error is not None and len(half) == 1:
            found = f"at {place}{half[0]}: {error}"
            break
        suspects = half if error is not None else suspects[len(half) :]
    return found or complaint


def _error(schema: Any, compile: Callable[[Grammar], object]) -> GrammarError | None:
    """Why the schema can't be compiled; None: it can."""
    try:
        compile(Grammar("json_schema", json.dumps(schema)))
    except GrammarError as error:
        return error
    return None


def _at(schema: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        schema = schema.get(key) if isinstance(schema, dict) else None
    return schema


def _only(schema: Any, path: tuple[str, ...], kept: range) -> Any:
    """The schema with these alternatives alone, at their places: references lead to them."""
    if path:
        return {**schema, path[0]: _only(schema[path[0]], path[1:], kept)}
    null = {"type": "null"}
    return [each if at in kept else null for at, each in enumerate(schema)]
