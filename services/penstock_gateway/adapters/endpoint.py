"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as in vLLM, and what others that load
and unload share with them."""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.http.replies import send_whole
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.service import Service


class LoadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """lora_path: a folder in PEFT's format or a .gguf file, in or below --lora-allowed-folder.
    load_inplace: an adapter of that name is replaced.  model: that it is for, where the server has
    several."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    model: str | None = None


class UnloadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """lora_int_id: taken for vLLM's sake, without effect."""

    lora_name: str
    lora_int_id: int | None = None


LOAD = Operation(
    method="POST",
    path="/v1/load_lora_adapter",
    summary="Load an adapter under a name that requests can use as their model",
    tag="adapters",
    body=LoadAdapterRequest,
    access="admin",
    statuses=(403,),
    media_type="text/plain",
)
UNLOAD = Operation(
    method="POST",
    path="/v1/unload_lora_adapter",
    summary="Unload an adapter; running requests continue",
    tag="adapters",
    body=UnloadAdapterRequest,
    access="admin",
    statuses=(403,),
    media_type="text/plain",
)


class LoadAdapterEndpoint(JsonEndpoint[LoadAdapterRequest]):
    """Answers once the adapter was read, and engine cores know it."""

    request_type = LoadAdapterRequest
    takes_long_bodies = False

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        done = await load_adapter(
            self._service,
            request.lora_name,
            request.lora_path,
            in_place=request.load_inplace,
            model=request.model,
        )
        await say(send, done)


class UnloadAdapterEndpoint(JsonEndpoint[UnloadAdapterRequest]):
    """Answers once engine cores know it."""

    request_type = UnloadAdapterRequest
    takes_long_bodies = False

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        await say(send, unload_adapter(self._service, request.lora_name))


async def load_adapter(
    service: Service, name: str, path: str, *, in_place: bool = False, model: str | None = None
) -> str:
    """Loads it into engine cores, and returns the reply. model: that it is for. Raises as
    AdapterLoader.load does, and for a name that another model has."""
    async with service.models.using(model) as asked:
        service.models.check_free(name, asked.backend)
        await asked.backend.adapters.load(name, path, in_place=in_place)
    return f"Success: LoRA adapter '{name}' added successfully."


def unload_adapter(service: Service, name: str) -> str:
    """Unloads it from engine cores, and returns the reply. Raises as AdapterLoader.unload
    does."""
    backend = service.models.with_adapter(name)
    if not backend.on_demand:
        backend.engine()  # One that is away now gets it when it is back.
    backend.adapters.unload(name)
    return f"Success: LoRA adapter '{name}' removed successfully."


async def say(send: Send, words: str) -> None:
    """Answers in plain text."""
    await send_whole(send, 200, words.encode(), "text/plain; charset=utf-8")


def routes(service: Service) -> list[OperationRoute]:
    """The routes that load and unload adapters."""
    return [
        LOAD.route(LoadAdapterEndpoint(service)),
        UNLOAD.route(UnloadAdapterEndpoint(service)),
    ]
