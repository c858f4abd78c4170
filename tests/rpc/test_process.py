"""The process that answers gRPC, from its start: calls wait for its first session."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
import pytest

from penstock.config.settings import GatewayConfig, ServeConfig
from penstock.net.listener import with_free_port
from penstock_gateway.models.reach import ReachedModels
from penstock_rpc import process
from penstock_rpc.protos.inference_pb2 import GenerateRequest, GenerateResponse

pytestmark = pytest.mark.timeout(120)
GENERATE = "/vllm.Inference/Generate"


@pytest.fixture
def config() -> ServeConfig:
    return with_free_port(ServeConfig(gateway=GatewayConfig(host="127.0.0.1", grpc_port=0)))


async def called(port: int) -> str:
    """What a call without an engine core ends with."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            GENERATE,
            request_serializer=GenerateRequest.SerializeToString,
            response_deserializer=GenerateResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call(GenerateRequest(text="Hello"), wait_for_ready=True)
        return f"{ended.value.code().name}: {ended.value.details()}"


@pytest.mark.parametrize("ends", [False, True], ids=["a session", "a signal"])
async def test_calls_wait_for_the_first_session_or_the_end(
    config: ServeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    waiting, let = asyncio.Event(), asyncio.Event()

    async def first_sessions(models: ReachedModels) -> None:
        waiting.set()
        await let.wait()

    monkeypatch.setattr(ReachedModels, "first_sessions", first_sessions)
    port = config.gateway.grpc_port
    assert port
    serving = asyncio.create_task(process._serve(f"ipc://{tmp_path}/none", config, None, None))
    await waiting.wait()
    # It listens by now.
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = asyncio.create_task(called(port))
    assert await asyncio.wait_for(asyncio.wait([asked], timeout=0.5), 60) == (set(), {asked})
    if ends:
        asked.cancel()
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        let.set()
        assert "UNAVAILABLE: there is no session with an engine core" in await asked
        os.kill(os.getpid(), signal.SIGTERM)
    await serving
    writer.close()
    await asyncio.gather(asked, return_exceptions=True)
