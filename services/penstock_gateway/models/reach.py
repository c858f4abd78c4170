"""Turns endpoints and the list of models into connections to each model, and connects to the
supervisor for models that are loaded on demand."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from penstock.client import EngineClient
from penstock.config.model_list import ModelEntry, gateway_config_of, read_list
from penstock.config.settings import GatewayConfig, ModelsSettings, TransportSettings
from penstock.errors import EngineUnavailable, InvalidRequest
from penstock.process import logs
from penstock.protocol.from_supervisor import FromSupervisor, Granted, ModelStates, Reclaimed
from penstock.protocol.to_supervisor import Introduce, ToSupervisor
from penstock.request.lora import adapters_of
from penstock_gateway.adapters.loading import AdapterFolders
from penstock_gateway.chat.output_parsing import check_parsers
from penstock_gateway.models.backend import ModelBackend
from penstock_gateway.models.residence import Residence

if TYPE_CHECKING:
    from penstock_gateway.models.residence import Residence

log = logs.get(__name__)

AGAIN = 0.2
"""Seconds between two tries to reach the supervisor."""
LOOK = 0.25
"""Seconds between looks at models, and `LOOK_SOON` where requests wait for one."""
LOOK_SOON = 0.02
LONGEST_LINE = 1 << 20
"""Bytes of a message."""


class SupervisorLink:
    """path: of the supervisor's socket. Lives in one event loop, from `start` to `close`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._name = os.urandom(16).hex()
        self._residences: dict[str, Residence] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._decoder = msgspec.json.Decoder(FromSupervisor)

    def add(self, residence: Residence) -> None:
        """Adds a model's residence. Called before `start`."""
        self._residences[residence.model] = residence

    def tell(self, message: ToSupervisor) -> bool:
        """Sends it; False while there is no connection. The next one begins with what is held, and
        what is wanted is asked for anew."""
        if self._writer is None or self._writer.is_closing():
            return False
        self._writer.write(msgspec.json.encode(message) + b"\n")
        return True

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._look())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError):
                await self._serve()
            await asyncio.sleep(AGAIN)

    async def _serve(self) -> None:
        reader, writer = await asyncio.open_unix_connection(self._path, limit=LONGEST_LINE)
        self._writer = writer
        try:
            held = [each for each in self._residences.values() if each.held]
            busy = [each.model for each in held if each.busy]
            self.tell(Introduce(self._name, [each.model for each in held], busy))
            for residence in self._residences.values():
                residence.connected()
            while line := await reader.readline():
                self._take(self._decoder.decode(line))
        except msgspec.DecodeError as error:
            log.error("the supervisor's message can't be read", reason=str(error))
        finally:
            self._writer = None
            writer.close()

    def _take(self, message: FromSupervisor) -> None:
        match message:
            case ModelStates():
                now = time.monotonic()
                for state in message.models:
                    if (residence := self._residences.get(state.model)) is not None:
                        residence.take_state(state, now)
            case Granted():
                if (residence := self._residences.get(message.model)) is not None:
                    residence.granted()
            case Reclaimed():
                if (residence := self._residences.get(message.model)) is not None:
                    residence.reclaimed()

    async def _look(self) -> None:
        while True:
            for residence in self._residences.values():
                residence.look()
            soon = any(each.waiting for each in self._residences.values())
            await asyncio.sleep(LOOK_SOON if soon else LOOK)


FIRST_SESSION = 2.0
"""Seconds in which an engine core that is there has answered a new gateway."""
READING = 30.0
"""Seconds more where it has answered: for its tokenizer, which takes seconds while all processors
are busy."""
TELL_AGAIN = 3600.0
"""Seconds between looks for a model that hasn't come."""
_NAMED = re.compile(r"([^\s,=]+)=((?:tcp|ipc|dns)://.+)")


@dataclass(slots=True)
class ReachedModels:
    """link: to the supervisor that starts and stops them; None: there is none."""

    backends: Sequence[ModelBackend]
    link: SupervisorLink | None = None
    telling: list[asyncio.Task[None]] = field(default_factory=list)
    """Wait for each model, to say how its answers are read."""

    async def start(self) -> None:
        """Begins to dial, and returns at once."""
        for backend in self.backends:
            await backend.client.start()
            self.telling.append(asyncio.create_task(_tell_formats(backend)))
        if self.link is not None:
            self.link.start()

    async def first_sessions(self) -> None:
        """Returns once each model has a session, but for those that are loaded on demand, whose
        requests wait for them, and those whose engine cores don't answer: a gateway serves without
        them, and says so."""
        always = [each.client for each in self.backends if not each.on_demand]
        await asyncio.gather(*map(_first_session, always))

    async def close(self) -> None:
        for task in self.telling:
            task.cancel()
        if self.link is not None:
            await self.link.close()
        for backend in self.backends:
            await backend.client.close()


async def _first_session(client: EngineClient) -> None:
    with suppress(EngineUnavailable):
        await client.wait_connected(FIRST_SESSION)
    if client.answered and not client.connected:
        with suppress(EngineUnavailable):
            await client.wait_connected(READING)


async def _tell_formats(backend: ModelBackend) -> None:
    """Once the model is there."""
    while backend.client.welcome is None:
        with suppress(EngineUnavailable):
            await backend.client.wait_connected(TELL_AGAIN)
    formats = backend.formats()
    if formats:
        log.info("parsers", model=backend.name, **formats)


def reach_models(
    endpoints: str,
    config: GatewayConfig,
    *,
    name: str,
    transport: TransportSettings | None,
    folders: AdapterFolders,
    models: ModelsSettings | None = None,
    socket: str | None = None,
) -> ReachedModels:
    """endpoints: with commas; of several models each has the model's name in front.  name: this
    front end's.  models: what the operator says of several.  socket: of the supervisor that starts
    and ends them.

    Raises InvalidRequest for endpoints that are none, and for models in one list only.
    """
    settings = models or ModelsSettings()
    by_name = named_endpoints(endpoints)
    entries = {} if settings.models is None else {e.name: e for e in read_list(settings.models)}
    _check_same(by_name, entries)
    link = None if socket is None else SupervisorLink(socket)

    def reached(model: str, where: str) -> ModelBackend:
        entry = entries.get(model)
        own = config if entry is None else gateway_config_of(entry, config)
        check_parsers(own)
        client = EngineClient(
            where,
            name=name,
            settings=transport,
            routing=config.routing,
            reasoning_parser=own.reasoning_parser,
        )
        names = entry.names if entry is not None else (model,) if model else ()
        adapters = () if entry is None else adapters_of(entry)
        backend = ModelBackend(client, own, names, adapters, folders)
        if link is not None and entry is not None:
            backend.residence = _residence(entry, backend, link, settings.model_load_timeout)
        return backend

    return ReachedModels([reached(model, where) for model, where in by_name.items()], link)


def named_endpoints(text: str) -> dict[str, str]:
    """Endpoints with commas, by the model in front of them; under an empty name where there is one
    model without a name. Raises InvalidRequest where only some are named."""
    found: dict[str, list[str]] = {}
    for part in text.split(","):
        named = _NAMED.fullmatch(part.strip())
        model, where = ("", part) if named is None else (named[1], named[2])
        found.setdefault(model, []).append(where)
    if "" in found and len(found) > 1:
        raise InvalidRequest(
            f"engine endpoint: {found[''][0]!r} has no model name in front, but others do",
            param="engine_endpoint",
        )
    return {model: ",".join(places) for model, places in found.items()}


def _check_same(by_name: dict[str, str], entries: dict[str, ModelEntry]) -> None:
    missing = [name for name in entries if name not in by_name]
    unknown = [name for name in by_name if entries and name not in entries]
    if missing:
        raise InvalidRequest(
            f"{missing[0]} is in the list of models but has no endpoint: --engine-endpoint "
            f"{missing[0]}=tcp://HOST:PORT",
            param="engine_endpoint",
        )
    if unknown:
        raise InvalidRequest(
            f"{unknown[0] or 'a model without a name'} has an endpoint but is not in the list of "
            "models",
            param="engine_endpoint",
        )


def _residence(
    entry: ModelEntry, backend: ModelBackend, link: SupervisorLink, patience: float
) -> Residence:
    def is_up() -> bool:
        client, status = backend.client, backend.fresh_status()
        return bool(
            client.connected and client.text and status and status.ready and not status.draining
        )

    residence = Residence(
        entry.name, pinned=entry.pinned, is_up=is_up, tell=link.tell, patience=patience
    )
    link.add(residence)
    return residence
