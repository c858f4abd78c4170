"""The methods of vllm.Control that free a model's memory and wake it, as POST /sleep and /wake_up
do. Like those that pause, the messages name no model."""

from __future__ import annotations

from typing import Any

from penstock.client.sleeping import sleep_level, wake_tags
from penstock_gateway.rpc.endpoint import MessageEndpoint
from penstock_gateway.rpc.protos.control_pb2 import (
    IsSleepingResponse,
    SleepResponse,
    WakeUpResponse,
)
from penstock_gateway.rpc.vllm.pausing import aborts
from penstock_gateway.service import Service


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
