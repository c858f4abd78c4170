"""vllm.Control: what an operator asks; and the handlers of both of vLLM's services."""

from __future__ import annotations

from typing import Any

from penstock.client.control import sleep_level, wake_tags
from penstock.errors import InvalidRequest
from penstock.process import logs
from penstock.version import __version__
from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.service import Service
from penstock_rpc.calls import Calls, Context, Handlers, asking, methods_in, parsed
from penstock_rpc.exchange import RunningCalls
from penstock_rpc.frames import frames_in
from penstock_rpc.protos import control_pb2, inference_pb2
from penstock_rpc.protos.control_pb2 import (
    PAUSE_MODE_ABORT,
    PAUSE_MODE_KEEP,
    PAUSE_MODE_UNSPECIFIED,
    AbortResponse,
    IsPausedResponse,
    IsSleepingResponse,
    ListLorasResponse,
    LoadLoraResponse,
    LoraAdapter,
    ModelInfo,
    PauseGenerationResponse,
    PauseMode,
    ResumeGenerationResponse,
    ServerInfo,
    SleepResponse,
    UnloadLoraResponse,
    WakeUpResponse,
)
from penstock_rpc.protos.inference_pb2 import GenerateRequest
from penstock_rpc.scope import MessageEndpoint, operation, scope_of
from penstock_rpc.served import adapters_of, model_facts, model_state
from penstock_rpc.status import failure
from penstock_rpc.vllm.generate_reply import merged

log = logs.get(__name__)

API_VERSION = "1"
MOST_IDS = 4096
"""Request ids in one Abort."""


class GetServerInfo(MessageEndpoint):
    async def answer(self, message: Any) -> ServerInfo:
        welcome, status = model_facts(self._service), model_state(self._service)
        return ServerInfo(
            engine_version=__version__,
            api_version=API_VERSION,
            instance_id=welcome.boot,
            max_model_len=welcome.limits.max_model_len,
            kv_block_size=0 if status is None else status.block_size,
            total_kv_blocks=0 if status is None else status.blocks_total,
            max_running_requests=welcome.limits.max_num_seqs,
        )


class GetModelInfo(MessageEndpoint):
    async def answer(self, message: Any) -> ModelInfo:
        welcome, config = model_facts(self._service), self._service.config
        return ModelInfo(
            model_id=welcome.model,
            served_model_name=welcome.model,
            served_model_aliases=welcome.other_names,
            supports_text_input=True,
            supports_token_ids_input=True,
            supports_lora=welcome.max_lora_rank > 0,
            supports_multimodal=welcome.media is not None,
            reasoning_parser=config.reasoning_parser,
            tool_call_parser=config.tool_call_parser,
        )


class AbortCalls(MessageEndpoint):
    def __init__(self, service: Service, running: RunningCalls) -> None:
        super().__init__(service)
        self._running = running

    async def answer(self, message: Any) -> AbortResponse:
        count = len(message.request_ids)
        if count > MOST_IDS:
            raise InvalidRequest(
                f"request_ids has {count} entries; at most {MOST_IDS} are allowed",
                param="request_ids",
            )
        ended = self._running.abort(message.request_ids)
        log.info("requests aborted", asked=count, ended=ended)
        return AbortResponse()


class LoadLora(MessageEndpoint):
    async def answer(self, message: Any) -> LoadLoraResponse:
        model_facts(self._service)
        name, path = message.lora_name, message.source_path
        backend = self._service.models.backend_of(None)
        await backend.adapters.load(name, path, in_place=False)
        return LoadLoraResponse(adapter=LoraAdapter(lora_name=name, source_path=path))


class UnloadLora(MessageEndpoint):
    async def answer(self, message: Any) -> UnloadLoraResponse:
        backend = self._service.models.with_adapter(message.lora_name)
        backend.engine()
        backend.adapters.unload(message.lora_name)
        return UnloadLoraResponse(adapter=LoraAdapter(lora_name=message.lora_name))


class ListLoras(MessageEndpoint):
    async def answer(self, message: Any) -> ListLorasResponse:
        return ListLorasResponse(
            adapters=[
                LoraAdapter(lora_name=each.name, source_path=each.file.digest if each.file else "")
                for each in adapters_of(self._service)
            ]
        )


def routes(service: Service, running: RunningCalls) -> list[OperationRoute]:
    """A route for each method."""
    endpoints: dict[str, MessageEndpoint] = {
        "GetServerInfo": GetServerInfo(service),
        "GetModelInfo": GetModelInfo(service),
        "Abort": AbortCalls(service, running),
        "LoadLora": LoadLora(service),
        "UnloadLora": UnloadLora(service),
        "ListLoras": ListLoras(service),
        **pausing(service),
        **sleeping(service),
    }
    return [
        operation(f"/vllm.Control/{name}", name, access="admin").route(endpoint)
        for name, endpoint in endpoints.items()
    ]


# The methods of vllm.Control that free a model's memory and wake it, as POST /sleep and /wake_up
# do. Like those that pause, the messages name no model.


class SleepModel(MessageEndpoint):
    async def answer(self, message: Any) -> SleepResponse:
        abort = aborts(message.mode)
        level = sleep_level(message.level if message.HasField("level") else 1)
        await self._service.models.ask(None).backend.client.put_to_sleep(level, abort=abort)
        return SleepResponse()


class WakeModel(MessageEndpoint):
    async def answer(self, message: Any) -> WakeUpResponse:
        tags = wake_tags(list(message.tags))
        await self._service.models.ask(None).backend.client.wake_up(tags)
        return WakeUpResponse()


class IsSleeping(MessageEndpoint):
    async def answer(self, message: Any) -> IsSleepingResponse:
        return IsSleepingResponse(sleeping=self._service.models.ask(None).backend.client.sleeping)


def sleeping(service: Service) -> dict[str, MessageEndpoint]:
    """Endpoints by the methods' names."""
    return {
        "Sleep": SleepModel(service),
        "WakeUp": WakeModel(service),
        "IsSleeping": IsSleeping(service),
    }


# The methods of vllm.Control that pause and resume, as POST /pause and /resume do. The messages
# name no model: with several models, each call is refused.

ABORTS = {PAUSE_MODE_UNSPECIFIED: True, PAUSE_MODE_ABORT: True, PAUSE_MODE_KEEP: False}
"""Whether a mode ends open requests."""


def aborts(mode: Any) -> bool:
    """Whether open requests end. mode: a PauseMode, as it came. Raises InvalidRequest."""
    found = ABORTS.get(mode)
    if found is None:
        named = dict(zip(PauseMode.values(), PauseMode.keys(), strict=True))
        allowed = ", ".join(named[mode] for mode in ABORTS)
        raise InvalidRequest(f"mode is {named.get(mode, mode)}; allowed: {allowed}", param="mode")
    return found


class PauseGeneration(MessageEndpoint):
    async def answer(self, message: Any) -> PauseGenerationResponse:
        abort = aborts(message.mode)
        await self._service.models.ask(None).backend.client.set_paused(True, abort=abort)
        return PauseGenerationResponse()


class ResumeGeneration(MessageEndpoint):
    async def answer(self, message: Any) -> ResumeGenerationResponse:
        await self._service.models.ask(None).backend.client.set_paused(False)
        return ResumeGenerationResponse()


class IsPaused(MessageEndpoint):
    async def answer(self, message: Any) -> IsPausedResponse:
        return IsPausedResponse(paused=self._service.models.ask(None).backend.client.paused)


def pausing(service: Service) -> dict[str, MessageEndpoint]:
    """Endpoints by the methods' names."""
    return {
        "PauseGeneration": PauseGeneration(service),
        "ResumeGeneration": ResumeGeneration(service),
        "IsPaused": IsPaused(service),
    }


INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"]
CONTROL = control_pb2.DESCRIPTOR.services_by_name["Control"]

MOST_MERGED = 1 << 18
"""Bytes of messages that are made one: more would hold other streams up."""


def handlers(calls: Calls) -> Handlers:
    """Handlers by the methods' paths."""
    return {
        "/vllm.Inference/Generate": calls.unary(_Generate(calls, "/vllm.Inference/Generate").whole),
        "/vllm.Inference/GenerateStream": calls.streaming(
            _Generate(calls, "/vllm.Inference/GenerateStream").stream
        ),
        **{path: asking(calls, path, kind) for path, kind in methods_in(CONTROL).items()},
    }


class _Generate:
    def __init__(self, calls: Calls, method: str) -> None:
        self._calls = calls
        self._method = method

    async def whole(self, request: bytes, context: Context) -> bytes:
        message: GenerateRequest = await parsed(GenerateRequest, request)
        name = message.request_id
        scope = scope_of(context, self._method, message=message, request_id=name)
        async with self._calls.exchange(context, scope, request_id=name) as exchange:
            return await exchange.whole()

    async def stream(self, request: bytes, context: Context) -> None:
        message: GenerateRequest = await parsed(GenerateRequest, request)
        name = message.request_id
        scope = scope_of(context, self._method, message=message, request_id=name)
        async with self._calls.exchange(context, scope, request_id=name) as exchange:
            async for piece in exchange.pieces():
                frames = list(frames_in(piece))
                good = [frame for failed, frame in frames if not failed]
                few = merged(good) if len(good) > 1 and len(piece) <= MOST_MERGED else good
                for each in few:
                    await self._calls.write(context, each)
                if len(good) < len(frames):
                    raise failure(frames[-1][1])
