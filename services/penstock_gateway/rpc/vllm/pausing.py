"""The methods of vllm.Control that pause and resume, as POST /pause and /resume do. The messages
name no model: with several models, each call is refused."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidRequest
from penstock_gateway.rpc.endpoint import MessageEndpoint
from penstock_gateway.rpc.protos.control_pb2 import (
    PAUSE_MODE_ABORT,
    PAUSE_MODE_KEEP,
    PAUSE_MODE_UNSPECIFIED,
    IsPausedResponse,
    PauseGenerationResponse,
    PauseMode,
    ResumeGenerationResponse,
)
from penstock_gateway.service import Service

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
