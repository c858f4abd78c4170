"""vllm.Control: what an operator asks."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidRequest
from penstock.process import logs
from penstock.version import __version__
from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.rpc.endpoint import MessageEndpoint, operation
from penstock_gateway.rpc.protos.control_pb2 import (
    AbortResponse,
    ListLorasResponse,
    LoadLoraResponse,
    LoraAdapter,
    ModelInfo,
    ServerInfo,
    UnloadLoraResponse,
)
from penstock_gateway.rpc.running import RunningCalls
from penstock_gateway.rpc.served import adapters_of, model_facts, model_state
from penstock_gateway.rpc.vllm.pausing import pausing
from penstock_gateway.rpc.vllm.sleeping import sleeping
from penstock_gateway.service import Service

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
