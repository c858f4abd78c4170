"""Carries a call to the application as an exchange, and the reply back to the call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from grpc.aio import ServicerContext
from starlette.types import ASGIApp, Scope

from penstock.errors import InvalidRequest
from penstock.process import logs
from penstock_gateway.http.errors import logged_cause
from penstock_gateway.http.scope_keys import REQUEST_ID
from penstock_gateway.keys.ring import unauthorized
from penstock_gateway.request.fields import tenant_of
from penstock_gateway.service import Service
from penstock_rpc.exchange import AppExchange, RunningCalls
from penstock_rpc.scope import key_scope, scope_of
from penstock_rpc.status import RefusedCall, SlowReader, refusal, refused_by

log = logs.get(__name__)

Context: TypeAlias = ServicerContext
Unary = Callable[[bytes, Context], Awaitable[bytes]]
Streaming = Callable[[bytes, Context], Awaitable[None]]
Conversing = Callable[[AsyncIterator[bytes], Context], Awaitable[None]]
Metadata = Iterable[tuple[str, str | bytes]]
Merge = Callable[[Iterable[bytes]], list[bytes]]


class Calls:
    """What the services share. app: that answers.  running: for who aborts."""

    def __init__(self, app: ASGIApp, service: Service, running: RunningCalls) -> None:
        self.service = service
        self._app = app
        self._running = running

    @asynccontextmanager
    async def exchange(
        self, context: Context | None, scope: Scope, body: bytes = b"", request_id: str = ""
    ) -> AsyncIterator[AppExchange]:
        """An exchange whose answer has begun, and is no error. It is left at the end, however that
        comes, which aborts what still runs. request_id: by which it may be aborted; empty: by
        that of its metadata.  context: whose initial metadata tell of the answer.

        Raises RefusedCall.
        """
        exchange = AppExchange(self._app, scope, body)
        try:
            with self._running.known_as(exchange, request_id or _given_id(scope)):
                await exchange.begun()
                if context is not None:
                    await context.send_initial_metadata(_metadata(exchange))
                if exchange.status != 200:
                    wait = exchange.headers.get(b"retry-after")
                    retry_after = None if wait is None else wait.decode()
                    refused = refusal(exchange.status, await exchange.whole(), retry_after)
                    # With the error, too: of a call that fails, clients may drop what came first.
                    refused.trailing += _metadata(exchange)
                    raise refused
                yield exchange
        except RuntimeError as error:
            if exchange.aborted:
                raise RefusedCall(StatusCode.CANCELLED, "the request was aborted") from None
            name = scope.get(REQUEST_ID, "")
            raise RefusedCall(StatusCode.INTERNAL, f"{error}; request id: {name}") from None
        finally:
            exchange.leave()

    def knows(self, metadata: Metadata) -> bool:
        """Whether a call brings a known key, where one is needed."""
        ring = self.service.ring
        return ring is None or ring.find(key_scope(metadata)) is not None

    def tenant_of(self, metadata: Metadata) -> str:
        """Returns the tenant of a call before an endpoint has it; empty for none."""
        scope, ring = key_scope(metadata), self.service.ring
        key = None if ring is None else ring.find(scope)
        return tenant_of(scope) if key is None else key.tenant_name

    def refusing(self, method: str) -> grpc.RpcMethodHandler:
        """The handler of calls without a known key: each ends before its message is read, and is
        logged and counted as over HTTP."""

        async def refuse(requests: AsyncIterator[bytes], context: Context) -> None:
            async with self.exchange(context, scope_of(context, method)):
                raise unauthorized()  # The key has become known meanwhile.

        return self.conversing(refuse)

    async def write(self, context: Context, message: bytes) -> None:
        """Raises SlowReader where the client doesn't read."""
        patience = self.service.patience.reader
        try:
            async with asyncio.timeout(patience):
                await context.write(message)
        except TimeoutError:
            raise SlowReader(
                StatusCode.ABORTED, f"the client did not read the stream for {patience:g} seconds"
            ) from None

    # grpcio's own unary requests are awaited for ever before a handler gets the call, which counts
    # towards --grpc-max-calls meanwhile: so all of them are streams here, of one.

    def unary(self, handler: Unary) -> grpc.RpcMethodHandler:
        """A method that answers with one message."""

        async def call(requests: AsyncIterator[bytes], context: Context) -> bytes:
            try:
                return await handler(await self._only(requests), context)
            except Exception as error:
                await _refuse(context, error)
                raise

        return grpc.stream_unary_rpc_method_handler(call)

    def streaming(self, handler: Streaming) -> grpc.RpcMethodHandler:
        """A method that answers with a stream."""

        async def call(requests: AsyncIterator[bytes], context: Context) -> None:
            await handler(await self._only(requests), context)

        return self.conversing(call)

    def conversing(self, handler: Conversing) -> grpc.RpcMethodHandler:
        """A method with a stream of requests that answers with a stream."""

        async def call(requests: AsyncIterator[bytes], context: Context) -> None:
            try:
                await handler(requests, context)
            except Exception as error:
                await _refuse(context, _cause(error))
                raise

        return grpc.stream_stream_rpc_method_handler(call)

    async def _only(self, requests: AsyncIterator[bytes]) -> bytes:
        """The request of a call that has one. Raises RefusedCall for none, and for one that takes
        longer than a body may over HTTP."""
        patience = self.service.patience.body
        try:
            async with asyncio.timeout(patience):
                async for request in requests:
                    return request
        except TimeoutError:
            raise RefusedCall(
                StatusCode.DEADLINE_EXCEEDED,
                f"the request message did not arrive within {patience:g} seconds",
            ) from None
        raise RefusedCall(StatusCode.INVALID_ARGUMENT, "the call has no request message")


async def parsed(kind: type[Any], request: bytes) -> Any:
    """The message. Raises RefusedCall for bytes that are none, and InvalidRequest for what would
    hold the event loop up."""
    await check_message(kind.DESCRIPTOR, request)
    try:
        message: Message = kind.FromString(request)
    except DecodeError:
        raise RefusedCall(
            StatusCode.INVALID_ARGUMENT, f"the request is not a valid {kind.DESCRIPTOR.full_name}"
        ) from None
    if len(request) > SMALL:
        await asyncio.sleep(0)  # What is made of it has a turn of its own.
    return message


async def _refuse(context: Context, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        return
    refused = refused_by(error)
    if refused.code is StatusCode.INTERNAL and not isinstance(error, RefusedCall):
        log.error("a call failed", **logged_cause(error))
    await context.abort(refused.code, refused.details, refused.trailing)


def _cause(error: Exception) -> Exception:
    """The error, or the first of several tasks' errors."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _given_id(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name == b"x-request-id"]
    return str(found[0].decode("latin-1")) if found else ""


def _metadata(exchange: AppExchange) -> tuple[tuple[str, str], ...]:
    """What the response's own headers say, as initial metadata."""
    return tuple(
        (name.decode(), value.decode("latin-1"))
        for name, value in exchange.headers.items()
        if name.startswith(b"x-") and name != b"x-accel-buffering"
    )


# How long a message takes to parse, estimated before it is parsed.
#
# protobuf parses a message in one call that holds the interpreter's lock, and what it made is read
# under it, too: 16 MiB of one text take 6 ms, and of empty messages within one 0.7 s. So the values
# are counted first, along the message's descriptor, in turns between which others are served.

MAX_UNITS = 524_288
"""What a message may hold, in units of about 50 ns: so it is parsed and read in some 30 ms."""
SMALL = 32_768
"""Bytes of a message that can't hold much."""
FIELD, MESSAGE = 4, 8
"""Units of a field, and of a message within the message."""
DEAR_BYTES = 16
"""Bytes of a text beyond ASCII that are a unit."""
_A_TURN = 4096
"""Fields."""
_LONGEST_VARINT = 10
"""Bytes."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_ENDS = bytes(range(128))
"""Bytes that end a varint."""
_SIZES = {
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_DOUBLE: 8,
}
"""Bytes of a number that is no varint."""


async def check_message(about: Descriptor, data: bytes) -> None:
    """Raises InvalidRequest for a message that isn't parsed in a turn. What is no message passes:
    the parser stops at the same place."""
    if len(data) <= SMALL:
        return
    for _ in _Count().of(about, data):
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # Parsing is a turn by itself.


class _Count:
    def __init__(self) -> None:
        self._units = 0.0
        self._fields = 0

    def of(self, about: Descriptor, data: bytes) -> Iterator[None]:
        """Yields after as many fields as are a turn. Raises InvalidRequest."""
        open_: list[tuple[Descriptor | None, int, int]] = [(about, 0, len(data))]
        while open_:
            kind, at, end = open_.pop()
            while at < end:
                self._fields += 1
                if self._fields % _A_TURN == 0:
                    yield
                tag, at = _varint(data, at, end)
                field = None if kind is None else kind.fields_by_number.get(tag >> 3)
                self._add(FIELD)
                match tag & 7:
                    case 0:
                        _, at = _varint(data, at, end)
                    case 1:
                        at += 8
                    case 5:
                        at += 4
                    case 2:
                        length, at = _varint(data, at, end)
                        if at + length > end:
                            return
                        if field is not None and field.message_type is not None:
                            self._add(MESSAGE)
                            open_.append((kind, at + length, end))
                            kind, end = field.message_type, at + length
                        else:
                            self._add(_units(field, data, at, length))
                            at += length

    def _add(self, units: float) -> None:
        self._units += units
        if self._units > MAX_UNITS:
            raise InvalidRequest(
                "the message holds too many values, messages or characters beyond ASCII: what was "
                f"read of it counts as {self._units:.0f} (a number in a packed list 1, a field "
                f"{FIELD}, a message within it {MESSAGE} more, {DEAR_BYTES} bytes beyond ASCII 1), "
                f"and at most {MAX_UNITS} are allowed",
                code="request_too_large",
            )


def _units(field: FieldDescriptor | None, data: bytes, at: int, length: int) -> float:
    """Units of what is in a text, in bytes, or in a packed list."""
    if field is None or field.type == FieldDescriptor.TYPE_BYTES:
        return 0
    if field.type == FieldDescriptor.TYPE_STRING:
        return 0 if data[at : at + length].isascii() else length / DEAR_BYTES
    size = _SIZES.get(field.type)
    if size is not None:
        return length / size
    if length > _LONGEST_VARINT * MAX_UNITS:
        return length / _LONGEST_VARINT
    return length - len(data[at : at + length].translate(None, _ENDS))


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number there, and where it ends. What is none ends with the data."""
    if at >= end:
        return 0, end
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    value = 0
    for place in range(min(_LONGEST_VARINT, end - at)):
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    return 0, end


Handlers = dict[str, "grpc.RpcMethodHandler"]
"""Handlers by the methods' paths."""


def methods_in(service: ServiceDescriptor) -> dict[str, type[Any]]:
    """The class of each method's request, by the method's path."""
    return {
        f"/{service.full_name}/{method.name}": GetMessageClass(method.input_type)
        for method in service.methods
    }


def asking(calls: Calls, path: str, kind: type[Any]) -> grpc.RpcMethodHandler:
    """A method whose endpoint answers with one message. kind: of the request."""

    async def ask(request: bytes, context: Context) -> bytes:
        scope = scope_of(context, path, message=await parsed(kind, request))
        async with calls.exchange(context, scope) as exchange:
            return await exchange.whole()

    return calls.unary(ask)
