"""What no well-behaved client sends. Whatever it is, the next call is answered."""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from penstock.client import SequenceDelta
from penstock_rpc.protos.inference_pb2 import (
    GenerateRequest,
    GenerateResponse,
)
from penstock_rpc.protos.kserve_pb2 import ModelStreamInferResponse
from tests.gateway import keyring
from tests.gateway.fake_engine import FakeEngineClient, say
from tests.rpc.conftest import Serve, Serving
from tests.rpc.test_kserve import raw_request

GENERATE = "/vllm.Inference/Generate"
STREAM = "/vllm.Inference/GenerateStream"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, DATA, PING, CONTINUATION, RESET = 4, 1, 0, 6, 9, 3


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


ATTACKS = {
    "HTTP/1.1": b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "noise": random.Random(1).randbytes(4096),
    "half a preface": PREFACE[:9],
    "a length of 16 MiB": PREFACE + b"\xff\xff\xff" + bytes(6) + bytes(64),
    "data of no stream": PREFACE + frame(SETTINGS) + frame(DATA, b"x" * 100, stream=1),
    "headers that are no HPACK": PREFACE
    + frame(SETTINGS)
    + frame(HEADERS, b"\xff" * 200, flags=4, stream=1),
    "continuations without end": PREFACE
    + frame(SETTINGS)
    + frame(HEADERS, b"", stream=1)
    + frame(CONTINUATION, b"\x00" * 16_000, stream=1) * 200,
    "many pings": PREFACE + frame(SETTINGS) + frame(PING, bytes(8)) * 10_000,
    "many settings": PREFACE + frame(SETTINGS) * 10_000,
    "resets": PREFACE + frame(SETTINGS) + frame(RESET, bytes(4), stream=1) * 1000,
    "an even stream": PREFACE + frame(SETTINGS) + frame(HEADERS, b"\x82", flags=5, stream=2),
}


async def answers(serving: Serving) -> None:
    reply = await serving.unary(GENERATE, GenerateRequest(text="x"), GenerateResponse, timeout=30)
    assert reply.outputs.text


@pytest.mark.parametrize("attack", ATTACKS)
async def test_bytes_that_are_no_calls(serving: Serving, attack: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    try:
        writer.write(ATTACKS[attack])
        writer.write_eof()
        async with asyncio.timeout(30):
            while await reader.read(65_536):
                pass
    except ConnectionError:
        pass
    finally:
        writer.close()
    await answers(serving)
    assert not serving.service.open_requests


async def refused(serving: Serving, path: str, request: bytes, **options: object) -> str:
    call = serving.channel.unary_unary(path)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call(request, timeout=30, **options)
    await answers(serving)
    return error.value.code().name


async def test_messages_that_are_none(serving: Serving) -> None:
    nested = b""
    for _ in range(2000):  # kv.kv_transfer_params: a value in a list in a value …
        nested = b"\x32" + _length(len(nested) + 2) + b"\x0a" + _length(len(nested)) + nested
        if len(nested) > 100_000:
            break
    for request in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f", os.urandom(64) + b"\xff", nested):
        assert await refused(serving, GENERATE, request) in ("INVALID_ARGUMENT", "INTERNAL")
        assert await refused(serving, "/vllm.Control/Abort", b"\x0a\x7f") == "INVALID_ARGUMENT"


def _length(count: int) -> bytes:
    out = bytearray()
    while count > 127:
        out.append(count & 127 | 128)
        count >>= 7
    out.append(count)
    return bytes(out)


async def test_messages_that_are_too_long(serve: Serve) -> None:
    serving = await serve(max_body_bytes=4096)
    long = GenerateRequest(text="x" * 5000).SerializeToString()
    assert await refused(serving, GENERATE, long) == "RESOURCE_EXHAUSTED"


async def test_metadata_that_are_too_long(serve: Serve) -> None:
    serving = await serve(max_header_bytes=4096)
    request = GenerateRequest(text="x").SerializeToString()
    metadata = tuple((f"x-{n}", "y" * 500) for n in range(20))
    code = await refused(serving, GENERATE, request, metadata=metadata)
    assert code == "RESOURCE_EXHAUSTED"


async def test_more_calls_than_may_run(serve: Serve) -> None:
    def waiting(prompt, params):
        yield from list(say("ab")(prompt, params))[:1]
        yield 600.0

    serving = await serve(FakeEngineClient(waiting), grpc_max_calls=4)
    streams = [
        serving.stream(STREAM, GenerateRequest(text="x"), GenerateResponse) for _ in range(4)
    ]
    for stream in streams:
        await stream.read()
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{serving.port}", options=(("grpc.use_local_subchannel_pool", 1),)
    ) as other:
        call = other.unary_unary(GENERATE)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(GenerateRequest(text="x").SerializeToString(), timeout=30)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for stream in streams:
        stream.cancel()
    while serving.service.open_requests:
        await asyncio.sleep(0.01)


async def test_a_client_that_reads_nothing_is_cut_off(serve: Serve) -> None:
    def endless(prompt, params):
        while True:
            yield [SequenceDelta(index=0, text="x" * 50_000, token_ids=[120])]

    serving = await serve(FakeEngineClient(endless), reader=0.5)
    stream = serving.stream(STREAM, GenerateRequest(text="x"), GenerateResponse)
    await stream.read()
    # The fake goes on for ever; only the reader's patience ends it.
    async with asyncio.timeout(60):
        while serving.service.open_requests:
            await asyncio.sleep(0.05)
    assert serving.engine.generations[0].aborted.is_set()
    stream.cancel()


def head_of(path: str) -> bytes:
    """A call's headers, none of them compressed."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


@asynccontextmanager
async def calls_without_messages(
    serving: Serving, count: int, path: str = GENERATE
) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    try:
        writer.write(PREFACE + frame(SETTINGS))
        for each in range(count):
            writer.write(frame(HEADERS, head_of(path), flags=4, stream=2 * each + 1))
        await writer.drain()
        yield reader
    finally:
        writer.close()


async def answered(serving: Serving) -> bool:
    call = serving.channel.unary_unary(GENERATE)(GenerateRequest(text="x").SerializeToString())
    code = await call.code()
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)
    return code is grpc.StatusCode.OK


@pytest.mark.parametrize("path", [GENERATE, STREAM, "/grpc.health.v1.Health/Check"])
async def test_a_call_whose_message_never_comes_gives_its_place_back(
    serve: Serve, path: str
) -> None:
    serving = await serve(grpc_max_calls=4, body=1.0)
    async with calls_without_messages(serving, 4, path) as reader, asyncio.timeout(30):
        refused = b""
        while refused.count(b"message did not arrive within 1 seconds") < 4:
            refused += await reader.read(65_536)
        while not await answered(serving):
            await asyncio.sleep(0.05)


async def test_who_has_no_key_is_refused_before_its_message(serve: Serve, tmp_path: Path) -> None:
    keys = keyring.write(tmp_path / "keys.json", keyring.key(keyring.ALICE))
    serving = await serve(api_keys=keys, grpc_max_calls=4)
    async with calls_without_messages(serving, 4) as reader:
        got = b""
        async with asyncio.timeout(30):
            while got.count(b"grpc-status") < 1 or got.count(b"x-request-id") < 1:
                got += await reader.read(65_536)
        metadata = (("x-api-key", keyring.ALICE),)
        request = GenerateRequest(text="x")
        async with asyncio.timeout(30):
            reply = await serving.unary(GENERATE, request, GenerateResponse, metadata=metadata)
        assert reply.outputs.text
    assert serving.service.responses[401] == 4


async def test_a_call_without_a_message_is_refused(serving: Serving) -> None:
    call = serving.channel.stream_unary(GENERATE)()
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no request message" in await call.details()


async def test_who_reads_nothing_of_an_infer_stream_is_told_so(serve: Serve) -> None:
    def endless(prompt, params):
        while True:
            yield [SequenceDelta(index=0, text="x" * 50_000, token_ids=[120])]

    serving = await serve(FakeEngineClient(endless), reader=0.5)
    stream = serving.channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=ModelStreamInferResponse.FromString,
    )()
    await stream.write(raw_request("x", stream=True))
    await stream.read()
    async with asyncio.timeout(60):
        while serving.service.open_requests:
            await asyncio.sleep(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await read_on(stream)
    assert cut.value.code() is grpc.StatusCode.ABORTED


async def read_on(stream: grpc.aio.StreamStreamCall) -> None:
    """To the stream's end: its status comes behind what was sent."""
    while await stream.read() is not grpc.aio.EOF:
        pass
