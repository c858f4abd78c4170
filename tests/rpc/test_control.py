"""vllm.Control, health and reflection; who may ask what."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from penstock.request.api_keys import digest_of
from penstock.version import __version__
from penstock_rpc.protos.control_pb2 import (
    AbortRequest,
    AbortResponse,
    GetModelInfoRequest,
    GetServerInfoRequest,
    IsPausedRequest,
    IsPausedResponse,
    IsSleepingRequest,
    IsSleepingResponse,
    ListLorasRequest,
    ListLorasResponse,
    LoadLoraRequest,
    LoadLoraResponse,
    ModelInfo,
    PauseGenerationRequest,
    PauseGenerationResponse,
    ResumeGenerationRequest,
    ResumeGenerationResponse,
    ServerInfo,
    SleepRequest,
    SleepResponse,
    UnloadLoraRequest,
    UnloadLoraResponse,
    WakeUpRequest,
    WakeUpResponse,
)
from penstock_rpc.protos.inference_pb2 import GenerateRequest, GenerateResponse
from penstock_rpc.protos.kserve_pb2 import (
    ModelInferRequest,
    ModelStreamInferResponse,
    ServerLiveRequest,
    ServerLiveResponse,
)
from penstock_rpc.services import SERVED
from tests.gateway import keyring
from tests.rpc.conftest import Serve, Serving

CONTROL = "/vllm.Control/"
HEALTH = "/grpc.health.v1.Health/"


async def test_server_and_model(serving: Serving) -> None:
    info = await serving.unary(f"{CONTROL}GetServerInfo", GetServerInfoRequest(), ServerInfo)
    assert info.engine_version == __version__
    assert info.max_model_len == serving.engine.welcome.limits.max_model_len
    assert info.kv_block_size == serving.engine.status.block_size
    model = await serving.unary(f"{CONTROL}GetModelInfo", GetModelInfoRequest(), ModelInfo)
    assert model.served_model_name == serving.engine.welcome.model
    assert model.supports_text_input
    assert not model.supports_lora


async def test_adapters_that_are_not_served(serving: Serving) -> None:
    listed = await serving.unary(f"{CONTROL}ListLoras", ListLorasRequest(), ListLorasResponse)
    assert not listed.adapters
    for path, message, reply in (
        ("LoadLora", LoadLoraRequest(lora_name="a", source_path="b"), LoadLoraResponse),
        ("UnloadLora", UnloadLoraRequest(lora_name="a"), UnloadLoraResponse),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await serving.unary(f"{CONTROL}{path}", message, reply)
        assert refused.value.code().name in ("NOT_FOUND", "PERMISSION_DENIED")


async def test_pausing(serving: Serving) -> None:
    async def paused() -> bool:
        reply = await serving.unary(f"{CONTROL}IsPaused", IsPausedRequest(), IsPausedResponse)
        return bool(reply.paused)

    async def pause(mode: int) -> None:
        message = PauseGenerationRequest(mode=mode, clear_cache=True)  # type: ignore[arg-type]
        await serving.unary(f"{CONTROL}PauseGeneration", message, PauseGenerationResponse)

    assert not await paused()
    for mode, aborts in ((0, True), (1, True), (3, False)):
        await pause(mode)
        assert await paused()
        await serving.unary(
            f"{CONTROL}ResumeGeneration", ResumeGenerationRequest(), ResumeGenerationResponse
        )
        assert not await paused()
        assert serving.engine.pauses[-2:] == [(True, aborts), (False, False)]
    for mode in (2, 9):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await pause(mode)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "PAUSE_MODE_ABORT, PAUSE_MODE_KEEP" in (refused.value.details() or "")
    assert not await paused()


async def test_sleeping(serving: Serving) -> None:
    async def sleeps() -> bool:
        reply = await serving.unary(f"{CONTROL}IsSleeping", IsSleepingRequest(), IsSleepingResponse)
        return bool(reply.sleeping)

    async def sleep(**fields: Any) -> None:
        await serving.unary(f"{CONTROL}Sleep", SleepRequest(**fields), SleepResponse)

    async def wake(*tags: str) -> None:
        await serving.unary(f"{CONTROL}WakeUp", WakeUpRequest(tags=tags), WakeUpResponse)

    assert not await sleeps()
    for fields, done in (({}, (1, True)), ({"level": 2, "mode": 3}, (2, False))):
        await sleep(**fields)
        assert serving.engine.sleeps[-1] == done
        assert await sleeps()
        await wake("weights")
        assert await sleeps()
        await wake()
        assert serving.engine.wakes[-2:] == [["weights"], []]
        assert not await sleeps()
    for call, says in (
        (sleep(level=0), "level is 0; allowed: 1, 2"),
        (sleep(level=3), "level is 3; allowed: 1, 2"),
        (sleep(mode=2), "PAUSE_MODE_ABORT, PAUSE_MODE_KEEP"),
        (wake("KV"), "allowed: weights, kv_cache"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert says in (refused.value.details() or "")
    assert len(serving.engine.sleeps) == 2


async def test_what_is_not_there_is_unimplemented(serving: Serving) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await serving.unary(f"{CONTROL}Shutdown", AbortRequest(), AbortResponse)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_keys(serve: Serve, tmp_path: Path) -> None:
    keys = keyring.write(
        tmp_path / "keys.json",
        keyring.key(keyring.ALICE),
        keyring.key(keyring.ADMIN, admin=True),
        keyring.key(keyring.OTHER, models=["another"]),
    )
    serving = await serve(api_keys=keys)
    generate = ("/vllm.Inference/Generate", GenerateRequest(text="x"), GenerateResponse)
    control = (f"{CONTROL}GetServerInfo", GetServerInfoRequest(), ServerInfo)
    live = ("/inference.GRPCInferenceService/ServerLive", ServerLiveRequest(), ServerLiveResponse)
    health = (f"{HEALTH}Check", HealthCheckRequest(), HealthCheckResponse)

    async def code(call: tuple[str, Any, Any], *metadata: tuple[str, str]) -> str:
        try:
            await serving.unary(*call, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    alice = ("authorization", f"Bearer {keyring.ALICE}")
    admin = ("x-api-key", keyring.ADMIN)
    assert await code(generate) == "UNAUTHENTICATED"
    assert await code(generate, ("x-api-key", keyring.UNKNOWN)) == "UNAUTHENTICATED"
    assert await code(generate, alice) == "OK"
    assert await code(generate, ("x-api-key", keyring.OTHER)) == "PERMISSION_DENIED"
    assert await code(control, alice) == "PERMISSION_DENIED"
    assert await code(control, admin) == "OK"
    assert await code(live) == "OK"
    assert await code(health) == "OK"
    tenants = {terms.tenant for terms in serving.engine.terms}
    assert tenants == {serving.service.ring.known(digest_of(keyring.ALICE.encode())).tenant_name}
    # A stream that may stay open for ever is refused when it is opened.
    stream = serving.channel.stream_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=ModelInferRequest.SerializeToString,
        response_deserializer=ModelStreamInferResponse.FromString,
    )()
    assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_limits_by_the_minute(serve: Serve, tmp_path: Path) -> None:
    entry = keyring.key(keyring.ALICE, requests_per_minute=1)
    serving = await serve(api_keys=keyring.write(tmp_path / "keys.json", entry))
    call = serving.channel.unary_unary(
        "/vllm.Inference/Generate",
        request_serializer=GenerateRequest.SerializeToString,
        response_deserializer=GenerateResponse.FromString,
    )
    metadata = (("x-api-key", keyring.ALICE), ("x-request-id", "first"))
    first = call(GenerateRequest(text="x"), metadata=metadata)
    await first
    told = dict(await first.initial_metadata())
    assert told["x-request-id"] == "first"
    assert told["x-ratelimit-limit-requests"] == "1"
    with pytest.raises(grpc.aio.AioRpcError) as limited:
        await call(GenerateRequest(text="x"), metadata=metadata)
    assert limited.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(limited.value.trailing_metadata())["retry-after"]) >= 1


async def test_health_follows_the_engine_core(serving: Serving) -> None:
    status = HealthCheckResponse.ServingStatus
    for name in ("", *SERVED):
        request = HealthCheckRequest(service=name)
        reply = await serving.unary(f"{HEALTH}Check", request, HealthCheckResponse)
        assert reply.status == status.SERVING
    watch = serving.stream(f"{HEALTH}Watch", HealthCheckRequest(), HealthCheckResponse)
    assert (await watch.read()).status == status.SERVING
    serving.engine.connected = False
    async with asyncio.timeout(60):
        assert (await watch.read()).status == status.NOT_SERVING
    request = HealthCheckRequest(service="nobody")
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await serving.unary(f"{HEALTH}Check", request, HealthCheckResponse)
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as absent:
        await serving.unary("/vllm.Inference/Generate", GenerateRequest(text="x"), GenerateResponse)
    assert absent.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_who_watches_learns_that_the_server_leaves_and_holds_up_nothing(
    serving: Serving,
) -> None:
    status = HealthCheckResponse.ServingStatus
    told = {"": [status.SERVING, status.NOT_SERVING], "nobody": [status.SERVICE_UNKNOWN]}
    watches = {
        name: serving.stream(
            f"{HEALTH}Watch", HealthCheckRequest(service=name), HealthCheckResponse
        )
        for name in told
    }
    first = {name: (await watch.read()).status for name, watch in watches.items()}
    assert first == {name: statuses[0] for name, statuses in told.items()}
    reflection = serving.channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    )()
    await reflection.wait_for_connection()
    serving.service.draining = True
    async with asyncio.timeout(60):
        for name, watch in watches.items():
            for expected in told[name][1:]:
                assert (await watch.read()).status == expected
            assert await watch.read() is grpc.aio.EOF
        assert await reflection.code() is grpc.StatusCode.OK


async def test_a_client_that_knows_nothing_but_reflection(serving: Serving) -> None:
    def ask() -> tuple[set[str], str]:
        with grpc.insecure_channel(f"127.0.0.1:{serving.port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = DescriptorPool(database)
            service = pool.FindServiceByName("vllm.Inference")
            method = service.FindMethodByName("Generate")
            request = GetMessageClass(method.input_type)(text="Hi")
            call = channel.unary_unary(
                f"/{service.full_name}/{method.name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            reply: Any = call(request, timeout=30)
            return set(database.get_services()), reply.outputs.text

    services, text = await asyncio.to_thread(ask)
    assert {*SERVED, "grpc.health.v1.Health"} <= services
    assert text


async def test_without_keys_whatever_key_is_sent_makes_a_tenant(serve: Serve) -> None:
    serving = await serve()
    keys = [("x-api-key", "uno"), ("authorization", "Bearer uno"), ("x-api-key", "two")]
    for metadata in ((), *((each,) for each in keys)):
        request, reply = GenerateRequest(text="x"), GenerateResponse
        await serving.unary("/vllm.Inference/Generate", request, reply, metadata=metadata)
    tenants = [terms.tenant for terms in serving.engine.terms]
    assert tenants == ["", *(digest_of(key).hex()[:32] for key in (b"uno", b"uno", b"two"))]
