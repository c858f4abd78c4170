"""What KServe's protocol asks of server and model."""

from __future__ import annotations

from typing import Any

from penstock.version import __version__
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.service import Service
from penstock_rpc.protos.kserve_pb2 import (
    ModelMetadataResponse,
    ModelReadyResponse,
    ServerLiveResponse,
    ServerMetadataResponse,
    ServerReadyResponse,
)
from penstock_rpc.scope import MessageEndpoint, operation
from penstock_rpc.served import model_facts

SERVICE = "/inference.GRPCInferenceService"

_Tensor = ModelMetadataResponse.TensorMetadata
_TEXT = _Tensor(name="text_input", datatype="BYTES", shape=[-1])
_TOKENS = _Tensor(name="input_ids", datatype="INT64", shape=[-1])
_GENERATES = ModelMetadataResponse(
    inputs=[
        _TEXT,
        _TOKENS,
        _Tensor(name="stream", datatype="BOOL", shape=[1]),
        _Tensor(name="sampling_parameters", datatype="BYTES", shape=[1]),
    ],
    outputs=[
        _Tensor(name="text_output", datatype="BYTES", shape=[-1]),
        _Tensor(name="finish_reason", datatype="BYTES", shape=[-1]),
    ],
)
_EMBEDS = ModelMetadataResponse(
    inputs=[_TEXT, _TOKENS],
    outputs=[_Tensor(name="embedding", datatype="FP32", shape=[-1, -1])],
)


class ServerLive(MessageEndpoint):
    async def answer(self, message: Any) -> ServerLiveResponse:
        return ServerLiveResponse(live=True)


class ServerReady(MessageEndpoint):
    async def answer(self, message: Any) -> ServerReadyResponse:
        return ServerReadyResponse(ready=self._service.unready_reason() is None)


class ModelReady(MessageEndpoint):
    async def answer(self, message: Any) -> ModelReadyResponse:
        reason = self._service.unready_reason()
        if reason is None:
            check_version(message.version)
            model_facts(self._service, message.name)
        return ModelReadyResponse(ready=reason is None)


class ServerMetadata(MessageEndpoint):
    async def answer(self, message: Any) -> ServerMetadataResponse:
        return ServerMetadataResponse(name="penstock", version=__version__)


class ModelMetadata(MessageEndpoint):
    async def answer(self, message: Any) -> ModelMetadataResponse:
        check_version(message.version)
        welcome = model_facts(self._service, message.name)
        tensors = _GENERATES if welcome.pooling is None else _EMBEDS
        reply = ModelMetadataResponse(name=message.name, versions=["1"], platform="penstock")
        reply.MergeFrom(tensors)
        return reply


def check_version(version: str) -> None:
    """Every model has only version 1. Raises HTTPError 404."""
    if version not in ("", "1"):
        raise HTTPError(
            404,
            f"version is {version[:20]!r}; every model has only version 1",
            param="version",
            code="model_not_found",
        )


def routes(service: Service) -> list[OperationRoute]:
    """Live and ready are open, as health checks are."""
    return [
        operation(f"{SERVICE}/ServerLive", "Alive", access="open").route(ServerLive(service)),
        operation(f"{SERVICE}/ServerReady", "Ready", access="open").route(ServerReady(service)),
        operation(f"{SERVICE}/ModelReady", "Model ready").route(ModelReady(service)),
        operation(f"{SERVICE}/ServerMetadata", "The server").route(ServerMetadata(service)),
        operation(f"{SERVICE}/ModelMetadata", "The model").route(ModelMetadata(service)),
    ]
