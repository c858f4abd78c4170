"""JSON bodies: what every endpoint that takes one has in common, how they are decoded into request
structs, and the errors that tell people what to change."""

from __future__ import annotations

import asyncio
import functools
import math
import re
import types
import typing
from abc import ABC, abstractmethod
from codecs import BOM_UTF8
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Generic, TypeVar, Union, cast

import msgspec
from msgspec import inspect
from starlette.types import Message, Receive, Scope, Send

from penstock.config.foreign_names import meant
from penstock.errors import Field, InvalidRequest
from penstock_gateway.http.errors import leaving
from penstock_gateway.preparing.cost import is_small
from penstock_gateway.request.body import (
    check_amount,
    check_amount_now,
    check_json_type,
    read_body,
)
from penstock_gateway.request.fields import tenant_of
from penstock_gateway.request.long_numbers import check_numbers
from penstock_gateway.request.loose_values import as_meant
from penstock_gateway.request.skipped_fields import FIELDS, say_skipped
from penstock_gateway.service import Service

Request = TypeVar("Request")

_PATH = re.compile(r"(?s)(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?")
_UNKNOWN = re.compile(r"(?s)Object contains unknown field `(?P<name>.*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_UNLISTED = re.compile(r"(?s)Invalid enum value (?P<given>.*)")
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_LONE = "an escape \\ud800 to \\udfff has no matching surrogate"
_TRUNCATED = "Input data was truncated"

_ENOUGH = 1000
"""Characters of either end of a complaint."""


MOST_LISTED = 24
"""Fields that an error lists; of more, a reader would find none."""
_PIECE = 1 << 18
SEARCHED = 65_536
"""Bytes of a body that are looked through for why it is no JSON."""


class ShortFields:
    """Fields of a struct that take one of some words. What msgspec says of any other word quotes
    it, which takes 4 ns a byte: of a body of 32 MiB, 0.1 s at once. So a long one is found first.
    """

    def __init__(self, kind: Any) -> None:
        names = b"|".join(sorted(re.escape(name.encode()) for name in _chosen(kind)))
        self._long = (
            re.compile(rb'"(' + names + rb')"\s*+:\s*+"[^"\\]{%d}' % SEARCHED) if names else None
        )

    def check(self, body: bytes) -> None:
        """Raises InvalidRequest that names the field."""
        found = None if self._long is None else self._long.search(body)
        if found is not None:
            name = found[1].decode()
            raise InvalidRequest(
                f"{name} is longer than any of the values that it may have",
                param=name,
                code="invalid_value",
            )


@functools.cache
def _chosen(kind: Any) -> frozenset[str]:
    """Names of the fields, at any depth, whose texts are words to choose from. To look for them
    takes milliseconds, and every gateway of a process looks at the same structs."""
    found: set[str] = set()
    seen: set[Any] = set()
    left = [inspect.type_info(kind)]
    while left:
        each = left.pop()
        if isinstance(each, inspect.StructType):
            if each.cls in seen:
                continue
            seen.add(each.cls)
            if each.tag_field is not None:
                found.add(each.tag_field)
            for field in each.fields:
                if any(isinstance(one, _CHOICES) for one in _flat(field.type)):
                    found.add(field.encode_name)
                left.append(field.type)
        else:
            left += _inner(each)
    return frozenset(found)


_CHOICES = (inspect.LiteralType, inspect.EnumType)


def _flat(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _inner(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        yield from kind.types
    elif isinstance(kind, inspect.CollectionType):
        yield kind.item_type
    elif isinstance(kind, inspect.TupleType):
        yield from kind.item_types
    elif isinstance(kind, inspect.DictType):
        yield kind.value_type


def decode(body: bytes, decoder: msgspec.json.Decoder[Request]) -> Request:
    """What `decode_fields` returns, for a body that may bring schemas: raises InvalidRequest also
    for a number of one that no double holds."""
    request = decode_fields(body, decoder)
    check_numbers(body.removeprefix(BOM_UTF8))
    return request


def decode_fields(body: bytes, decoder: msgspec.json.Decoder[Request]) -> Request:
    """Raises InvalidRequest that names the field at fault and what is allowed there. What may be
    large is counted first, see check_amount. A byte order mark in front is skipped, as RFC 8259
    allows. What can mean only one thing is taken so, see as_meant."""
    body = body.removeprefix(BOM_UTF8)
    try:
        try:
            request = decoder.decode(body)
        except msgspec.ValidationError:
            meant = _meant(body, decoder.type)
            if meant is None:
                raise
            request = decoder.decode(meant)
    except msgspec.ValidationError as error:
        raise _explain(str(error), decoder.type) from None
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise _not_json("it is not UTF-8") from None
    except (msgspec.DecodeError, ValueError) as error:
        reason = str(error).removeprefix("JSON is malformed: ") if body else "it is empty"
        raise _not_json(_surrogate(reason, body) or reason) from None
    return request


async def _decode_large(
    body: bytes, decoder: msgspec.json.Decoder[Request], again: Callable[[bytes], Request]
) -> Request:
    """Does the same as `again`, to which a thread gives what is wrong at first sight."""
    try:
        request = decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return await asyncio.to_thread(again, body)
    await asyncio.to_thread(check_numbers, body)
    return request


def _meant(body: bytes, kind: Any) -> bytes | None:
    """The body as it was meant; None where it says what it means."""
    if not any(_holds(body, text) for text in (b"null", b".0")):
        return None
    try:
        given = msgspec.json.decode(body)
    except msgspec.ValidationError:
        given = _KEEPS_NUMBERS.decode(body)
    meant = as_meant(given, kind)
    return None if meant is given else msgspec.json.encode(meant)


def _number(text: str) -> float | msgspec.Raw:
    """A number, or what was written where that is too large for one: whoever reads it for a field
    says which."""
    number = float(text)
    return number if math.isfinite(number) else msgspec.Raw(text.encode())


_KEEPS_NUMBERS = msgspec.json.Decoder(float_hook=_number)


def _holds(body: bytes, text: bytes) -> bool:
    """A piece at a time: whoever else wants the interpreter gets it in between."""
    return any(text in body[at : at + _PIECE + len(text)] for at in range(0, len(body), _PIECE))


def _surrogate(reason: str, body: bytes) -> str | None:
    """msgspec's complaint of an escape without its other half, in words that say so: it takes the
    first half at a string's end for the body's end."""
    if reason.startswith("invalid utf-16 surrogate pair"):
        return _LONE
    if reason != _TRUNCATED:
        return None
    if len(body) > SEARCHED:
        return f"{reason}, or {_LONE}"
    return _LONE if _LONE_SURROGATE.search(body) else None


def convert(value: object, kind: type[Request], *, strict: bool = True) -> Request:
    """What was decoded before, as a struct. strict: numbers and flags aren't taken as texts.
    Raises InvalidRequest as `decode` does, and takes the same for what is meant."""
    try:
        return msgspec.convert(as_meant(value, kind), kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _explain(str(error), kind) from None
    except RecursionError:
        raise _not_json("it is nested too deeply") from None


def _not_json(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the request body must be JSON: {reason}", code="invalid_json")


def _explain(message: str, struct: Any) -> InvalidRequest:
    if len(message) > 2 * _ENOUGH:
        # It quotes a client's key: what is said of it is short, and looking through it is not.
        message = message[:_ENOUGH] + message[-_ENOUGH:]
    match = _PATH.fullmatch(message)
    what = match["what"] if match else message
    path = (match and match["path"]) or "$"
    if unknown := _UNKNOWN.fullmatch(what):
        return _unknown_field(unknown["name"], path, struct)
    if missing := _MISSING.fullmatch(what):
        where = _join(path, missing["name"])
        return InvalidRequest(f"{where} is missing", param=where, code="missing_required_parameter")
    where = path.removeprefix("$").removeprefix(".")
    if (unlisted := _UNLISTED.fullmatch(what)) and (words := _words_at(struct, path)):
        allowed = ", ".join(sorted(words))
        return InvalidRequest(
            f"{where or 'the request'} is {unlisted['given']}; allowed: {allowed}",
            param=where or None,
            code="invalid_type",
        )
    complaint = what.replace("`", "").replace(" | ", " or ").replace("Expected", "expected")
    return InvalidRequest(
        f"{where or 'the request'}: {complaint}", param=where or None, code="invalid_type"
    )


def _unknown_field(name: str, path: str, struct: Any) -> InvalidRequest:
    where = _join(path, name[:100])
    allowed = sorted(_fields_at(struct, path))
    near = meant(name[:100], allowed)
    if near is not None:
        hint = f"did you mean {near}?"
    elif len(allowed) <= MOST_LISTED:
        hint = f"allowed: {', '.join(allowed)}"
    else:
        hint = "GET /docs lists those that there are"
    return InvalidRequest(
        "unknown field ",
        Field(where),
        f"; {hint}",
        param=where,
        code="unknown_parameter",
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".removeprefix("$").removeprefix(".")


def _fields_at(struct: Any, path: str) -> set[str]:
    """Names of the fields that structs at a path such as `$.messages[0]` have."""
    return {
        field.encode_name
        for here in _structs(_at(struct, path))
        for field in msgspec.structs.fields(here)
    }


def _words_at(struct: Any, path: str) -> set[str]:
    """What is allowed at such a path, where that are some words or numbers."""
    return {
        str(word)
        for here in _parts(_at(struct, path))
        if typing.get_origin(here) is typing.Literal
        for word in typing.get_args(here)
    }


def _at(struct: Any, path: str) -> list[Any]:
    """The annotations of what may lie at such a path."""
    found = [struct]
    for step in re.findall(r"\.(\w+)", path):
        found = [
            field.type
            for here in _structs(found)
            for field in msgspec.structs.fields(here)
            if field.encode_name == step
        ]
    return found


def _structs(annotations: Iterable[Any]) -> Iterator[type[msgspec.Struct]]:
    """The structs among annotations and what they are made of."""
    for each in _parts(annotations):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            yield each


def _parts(annotations: Iterable[Any]) -> Iterator[Any]:
    """Annotations, and what they are made of."""
    for each in annotations:
        yield each
        if typing.get_origin(each) is not typing.Literal:
            yield from _parts(typing.get_args(each))


Kind = TypeVar("Kind")


def skipping(kind: type[Kind]) -> type[Kind]:
    """A struct type like `kind`, and a subclass of it, that skips unknown fields at any depth."""
    return cast("type[Kind]", _struct(cast("Hashable", kind)))


@functools.cache
def _struct(kind: Any) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = []
    for field in msgspec.structs.fields(kind):
        if field.default_factory is not msgspec.NODEFAULT:
            default = msgspec.field(default_factory=field.default_factory, name=field.encode_name)
        else:
            default = msgspec.field(default=field.default, name=field.encode_name)
        fields.append((field.name, _annotation(hints[field.name]), default))
    return msgspec.defstruct(
        kind.__name__,
        fields,
        bases=(kind,),
        module=kind.__module__,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=False,
    )


def _annotation(annotation: Any) -> Any:
    """The annotation with such structs in the place of those in it."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return _struct(annotation)
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return Annotated[_annotation(arguments[0]), *annotation.__metadata__]
    if origin is Union or origin is types.UnionType:
        # `|` has no form for a number of types that is known here only.
        return Union[tuple(map(_annotation, arguments))]  # noqa: UP007
    if origin in (list, dict):
        return origin[tuple(map(_annotation, arguments))]
    return annotation


def with_body(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, then what comes behind it."""
    bodies = iter([body])

    async def receive_again() -> Message:
        for each in bodies:
            return {"type": "http.request", "body": each, "more_body": False}
        return await receive()

    return receive_again


Body = TypeVar("Body")
Headers = Sequence[tuple[bytes, bytes]]
"""Names, in lower case, and values."""

LARGE = 262_144
"""Bytes of a body from which on decoding it is a turn by itself."""

SMALL = 2**20
"""Bytes of the largest body that holds no texts."""


class JsonEndpoint(ABC, Generic[Body]):
    """An ASGI application for one path. A plain one: it watches the connection while it works, and
    may hold response headers back, which a handler that returns a response can't."""

    request_type: type[Body]
    """The struct of its bodies."""
    takes_long_bodies = True
    """Whether a body may hold texts for the model; of names and settings, SMALL is enough."""
    takes_forms_type = False
    """Whether JSON may call itself application/x-www-form-urlencoded, as curl -d does."""
    ignores_unknown = False
    """Whether unknown fields are skipped, as by the API's maker; the log names each once."""
    answers_while_leaving = False
    """Whether requests that come after the gateway was told to leave are answered, too."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.place = service.preparers.register(self)
        """By which preparers know it."""
        kind = self.request_type
        if service.config.unknown_fields == "ignore":
            kind = skipping(kind)
        self._short = ShortFields(kind)
        self._decoder: msgspec.json.Decoder[Body] = msgspec.json.Decoder(kind)
        self._skipping: msgspec.json.Decoder[Body] | None = None
        if self.ignores_unknown:
            self._skipping = msgspec.json.Decoder(skipping(kind))

    runs_elsewhere = False
    """Whether a preparer answers the whole request where its body is large: what it asks of engine
    cores and of the disk is asked here."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.runs_elsewhere:
            await self.handle(scope, receive, send)
            return
        body = await self.body(scope, receive)
        if is_small(body):
            await self.handle(scope, with_body(body, receive), send)
        else:
            await self._service.preparers.answer(self, scope, body, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""

    def understood(self, body: bytes, headers: Headers) -> Body:
        """The body as a struct. headers: of the HTTP request. Raises InvalidRequest."""
        check_amount_now(body)
        if len(body) > LARGE:
            self._short.check(body)
        return self._decoded(body)

    def _decoded(self, body: bytes) -> Body:
        try:
            return decode(body, self._decoder)
        except InvalidRequest as error:
            if self._skipping is None or error.code != "unknown_parameter":
                raise
            # What is skipped has to be JSON, too.
            fields = decode_fields(body, FIELDS)
            say_skipped(type(self).__name__, fields, self.request_type, error.param)
        return decode(body, self._skipping)

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        """The request's body. Raises ClientGone, and HTTPError: 400, 408, 413, 415, or 503 where
        the gateway is leaving."""
        service = self._service
        check_json_type(scope, forms_too=self.takes_forms_type)
        most = service.config.max_body_bytes
        limit = most if self.takes_long_bodies else min(most, SMALL)
        body = await read_body(
            scope,
            receive,
            limit=limit,
            timeout=service.patience.body,
            room=service.bodies,
            tenant=tenant_of(scope),
        )
        if service.draining and not self.answers_while_leaving:
            raise leaving()
        return body

    async def read(self, scope: Scope, receive: Receive) -> Body:
        """The body as a struct, decoded in turns. Raises InvalidRequest, and what `body` raises."""
        body = await self.body(scope, receive)
        await check_amount(body)
        if len(body) <= LARGE:
            return self._decoded(body)
        self._short.check(body)
        await asyncio.sleep(0)  # Decoding is a turn of its own.
        request = await _decode_large(body, self._decoder, self._decoded)
        await asyncio.sleep(0)  # So is what comes next.
        return request
