"""POST /update_weights_from_disk, as in SGLang: replaces a model's weights."""

from __future__ import annotations

from pathlib import Path

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.client.replacing import ChangeMode
from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import clip
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.http.replies import send_json
from penstock_gateway.keys.ring import forbidden
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.service import Service


class UpdateWeightsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """model_path: a folder in the hub's format or a .gguf file, in or below
    --weights-allowed-folder.  mode: wait has requests that have begun end first, and holds those
    that come meanwhile; abort ends all that are open as they are.  timeout: seconds that the former
    may take, and then that may pass until a worker comes to load the weights, 60 if it isn't said,
    3600 at most.  abort_all_requests: SGLang's word for mode abort.
    flush_cache: taken for its sake, without effect: KV of other weights is never used.  model:
    whose, where the server has several."""

    model_path: str
    mode: ChangeMode = "wait"
    timeout: float | None = None
    abort_all_requests: bool = False
    flush_cache: bool = True
    model: str | None = None


class UpdateWeightsReply(msgspec.Struct, frozen=True):
    """What has been done."""

    success: bool
    message: str


UPDATE = Operation(
    method="POST",
    path="/update_weights_from_disk",
    summary="Replace the model's weights; the reply comes when they are loaded",
    tag="operations",
    body=UpdateWeightsRequest,
    reply=UpdateWeightsReply,
    access="admin",
    statuses=(403,),
)


class UpdateWeightsEndpoint(JsonEndpoint[UpdateWeightsRequest]):
    """Answers when the workers of all engine cores have them. Starts no model that isn't there."""

    request_type = UpdateWeightsRequest
    takes_long_bodies = False

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        source = _allowed(self._service.config.weights_allowed_folder, request.model_path)
        backend = self._service.models.ask(request.model).backend
        await backend.client.replace_weights(
            source,
            mode="abort" if request.abort_all_requests else request.mode,
            timeout=request.timeout,
            cache_dir=backend.adapters.folders.cache,
        )
        reply = UpdateWeightsReply(True, f"The weights of {request.model_path} are loaded.")
        await send_json(send, 200, msgspec.json.encode(reply))


def _allowed(folder: str | None, path: str) -> Path:
    """Where the weights lie. Raises HTTPError 403, and InvalidRequest where there is nothing."""
    if folder is None:
        raise forbidden(
            "this server doesn't replace weights at run time; its operator can allow it for one "
            "folder with --weights-allowed-folder"
        )
    allowed = Path(folder).resolve()
    if "\0" in path:
        raise InvalidRequest(f"there is no {clip(path)}", param="model_path")
    found = (allowed / path).resolve()
    if not found.is_relative_to(allowed):
        raise forbidden(f"{clip(path)} is outside the folder that --weights-allowed-folder allows")
    if not found.exists():
        raise InvalidRequest(f"there is no {clip(path)}", param="model_path")
    return found


def routes(service: Service) -> list[OperationRoute]:
    """The route."""
    return [UPDATE.route(UpdateWeightsEndpoint(service))]
