"""Models that a preparer's request names: the gateway finds them, and asks their engine cores."""

from __future__ import annotations

import signal
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from penstock.client.pool_request import PoolResult
from penstock.errors import EngineUnavailable
from penstock.media.item_names import PromptMedia
from penstock.protocol.common import Pooling
from penstock.protocol.media import Media
from penstock.request.terms import Terms
from penstock_gateway.models.backend import AskedModel, EngineInfo, ModelBackend, ModelRegistry
from penstock_gateway.preparing.channel import Channel
from penstock_gateway.preparing.wire import encode


class UseModel(msgspec.Struct, frozen=True, array_like=True):
    """A model that a request names."""

    name: str | None
    deadline: float | None


class UsedModel(msgspec.Struct, frozen=True, array_like=True):
    """A model that is there. place: among the gateway's.  name, waited: as AskedModel has them."""

    place: int
    name: str
    waited: float


class PoolAsked(msgspec.Struct, frozen=True, array_like=True):
    """Arguments of EngineClient.pool. prompt_token_ids: int32."""

    prompt_token_ids: bytes
    pooling: Pooling
    name: str
    terms: Terms
    media: Media | None = None
    in_front: int = 0


SECONDS_PER_RESULT = 0.001
"""Seconds of processor time more that a request may take for each vector, to write it."""
SECONDS_PER_BYTE = 2e-7
"""And for each of its bytes."""


class HomeClient:
    """In place of an EngineClient: the gateway's submits what is to be pooled."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.count = 1

    def fingerprint_for(self, prompt_token_ids: list[int], terms: Terms) -> str | None:
        """None: the gateway holds the parts of a request to one fingerprint."""
        return None

    async def pool(
        self,
        prompt_token_ids: list[int],
        pooling: Pooling,
        *,
        name: str,
        terms: Terms,
        media: PromptMedia | None = None,
    ) -> PoolResult:
        """Does what EngineClient.pool does."""
        asked = PoolAsked(
            array("i", prompt_token_ids).tobytes(),
            pooling,
            name,
            terms,
            None if media is None else media.media,
            0 if media is None else media.in_front,
        )
        result = _pooled.decode(await self._channel.ask("pool", encode(asked)))
        left, _ = signal.getitimer(signal.ITIMER_PROF)
        more = SECONDS_PER_RESULT + SECONDS_PER_BYTE * len(result.vectors.data)
        signal.setitimer(signal.ITIMER_PROF, left + more)
        return result


_pooled = msgspec.msgpack.Decoder(PoolResult)
_used = msgspec.msgpack.Decoder(UsedModel)


class HomeBackend:
    """In place of a ModelBackend."""

    def __init__(self, client: HomeClient) -> None:
        self.client = client


class HomeModels:
    """A ModelRegistry for preparers: asks the gateway's, which finds and starts models, and knows
    who may use them."""

    def __init__(self, models: ModelRegistry, channel: Channel) -> None:
        self.backends = models.backends
        self._channel = channel

    @asynccontextmanager
    async def using(
        self, name: str | None, deadline: float | None = None
    ) -> AsyncIterator[AskedModel]:
        """Does what ModelRegistry.using does."""
        used = _used.decode(await self._channel.ask("use", encode(UseModel(name, deadline))))
        backend = HomeBackend(HomeClient(self._channel))
        engine = engine_of(self.backends[used.place])
        yield AskedModel(used.name, None, engine, backend, used.waited)  # type: ignore[arg-type]


def engine_of(backend: ModelBackend) -> EngineInfo:
    """The model as this process was forked with it."""
    welcome, text = backend.client.welcome, backend.client.text
    if welcome is None or text is None:
        raise EngineUnavailable("the model isn't known any more")
    return EngineInfo(welcome, text, backend.config)
