"""The models as this gateway sees them: each with its engine cores, its names and its own counts,
and how a request's model is found among them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import InitVar, dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.client.session_state import STATUS_MAX_AGE
from penstock.config.settings import GatewayConfig
from penstock.errors import EngineUnavailable, InvalidRequest, StartupError
from penstock.parsing.registry import chosen, reasoning_parser
from penstock.protocol.common import AdapterFile
from penstock.text.fim import fim_tokens
from penstock_gateway.adapters.loading import AdapterFolders, AdapterLoader
from penstock_gateway.http.errors import clip, listed, model_not_found
from penstock_gateway.keys.ring import current
from penstock_gateway.keys.spend import SpendObserver
from penstock_gateway.metrics.counts import GatewayCounts
from penstock_gateway.models.residence import Residence

if TYPE_CHECKING:
    from penstock.client import EngineClient, ModelText
    from penstock.protocol.to_frontend import Status, Welcome


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The engine core as a request finds it."""

    welcome: Welcome
    text: ModelText
    config: GatewayConfig
    """The gateway's settings, with the parsers of this model."""


@dataclass(frozen=True, slots=True)
class AskedModel:
    """What a request asks for."""

    name: str
    """Name of the model or adapter as replies have it."""
    adapter: AdapterFile | None
    """The adapter that is applied to the model; None for none."""
    engine: EngineInfo
    backend: ModelBackend
    waited: float = 0.0
    """Seconds that the request waited for the model to be there."""

    @property
    def client(self) -> EngineClient:
        """Client by which the model is asked."""
        return self.backend.client


@dataclass(slots=True, eq=False)
class ModelBackend:
    """client: dials the model's engine cores; its owner starts and closes it."""

    client: EngineClient
    config: GatewayConfig
    given_names: tuple[str, ...] = ()
    """Names by which the operator calls the model, its own first; empty: what engine cores tell."""
    given_adapters: tuple[str, ...] = ()
    """Names of adapters that come with the model, before an engine core has sent them."""
    folders: InitVar[AdapterFolders | None] = None
    """Folders from which adapters may be read; None for no folder."""
    residence: Residence | None = None
    """Asks the supervisor for the model; None: it isn't started and stopped on demand."""
    spend: SpendObserver | None = None
    """What keys have used of it; None where there are no keys."""
    counts: GatewayCounts = field(default_factory=GatewayCounts)
    adapters: AdapterLoader = field(init=False)
    """What loads adapters by name."""

    def __post_init__(self, folders: AdapterFolders | None) -> None:
        self.adapters = AdapterLoader(self.client, folders or AdapterFolders())

    @property
    def name(self) -> str | None:
        """The model's name as replies have it; None: not known yet."""
        if self.given_names:
            return self.given_names[0]
        welcome = self.client.welcome
        return None if welcome is None else welcome.model

    @property
    def on_demand(self) -> bool:
        """Whether a request for it has it started."""
        return self.residence is not None and not self.residence.pinned

    def model_names(self) -> tuple[str, ...]:
        """The model's own, as far as they are known."""
        welcome = self.client.welcome
        names = () if welcome is None else (welcome.model, *welcome.other_names)
        return tuple(dict.fromkeys((*self.given_names, *names)))

    def formats(self) -> dict[str, str]:
        """The names of the parsers that read its answers; empty where it doesn't chat, or isn't
        known yet."""
        welcome, text = self.client.welcome, self.client.text
        if welcome is None or text is None or text.template is None or welcome.pooling is not None:
            return {}
        config, template = self.config, text.template.source
        return chosen(config.tool_call_parser, config.reasoning_parser, template, welcome.family)

    def capabilities(self) -> tuple[str, ...]:
        """What it does, in Ollama's words; empty where it isn't known yet."""
        welcome, text = self.client.welcome, self.client.text
        if welcome is None or text is None:
            return ()
        return capabilities(EngineInfo(welcome, text, self.config))

    def names(self) -> list[str]:
        """What requests may ask for: the model's first, and those of its adapters."""
        name = self.name
        if name is None:
            return []
        return [name, *(adapter.name for adapter in self.client.adapters.present())]

    def knows(self, name: str) -> bool:
        """Whether the model, or an adapter for it, is called so."""
        return name in self.model_names() or self.has_adapter(name)

    def has_adapter(self, name: str) -> bool:
        """Whether an adapter is called so, or will be once the model is there."""
        coming = self.client.welcome is None and name in self.given_adapters
        return coming or self.client.adapters.find(name) is not None

    def engine(self) -> EngineInfo:
        """Raises EngineUnavailable when there is no session, and was none a moment ago."""
        welcome, text = self.client.welcome, self.client.text
        if not self.client.takes_requests or welcome is None or text is None:
            reason = None if self.residence is None else self.residence.why_absent()
            raise EngineUnavailable(
                reason or "there is no session with an engine core at the moment"
            )
        return EngineInfo(welcome, text, self.config)

    def text(self) -> ModelText:
        """The model's tokenizer, chat template and media; of one that is started on demand, also
        while it isn't loaded. Raises EngineUnavailable where none is known."""
        known = self.client.text
        return known if self.on_demand and known is not None else self.engine().text

    def ask(self, name: str | None) -> AskedModel:
        """The model that a request gets which asks for `name`; None: for whatever is served.

        Raises EngineUnavailable, and HTTPError 404 or 403.
        """
        engine = self.engine()
        served, adapter = self.named(name)
        return AskedModel(served, adapter, engine, self)

    def named(self, name: str | None) -> tuple[str, AdapterFile | None]:
        """The name as replies have it, and what is applied to the model; also while the model is
        away.

        Raises HTTPError 404 for a name that it hasn't, and 403 where the key may not use it.
        """
        served, adapter = self.name or "", None
        if name is not None and name not in self.model_names():
            if not self.has_adapter(name):
                raise model_not_found(name, [served])
            found = self.client.adapters.find(name)
            served, adapter = name, None if found is None else found.file
        current.get().check_model(served)
        return served, adapter

    def fresh_status(self) -> Status | None:
        """The engine's state, unless it is too old to mean anything."""
        if self.client.status_age(time.monotonic()) > STATUS_MAX_AGE:
            return None
        return self.client.status

    def unready_reason(self) -> str | None:
        """The reason why a request would not be served now; None if it would."""
        if not self.client.connected:
            reason = None if self.residence is None else self.residence.why_absent()
            return reason or "no session with an engine core"
        status = self.fresh_status()
        if status is None:
            return f"the engine core has not reported its state for {STATUS_MAX_AGE:g} s"
        if status.draining:
            return "the engine core is draining"
        return None if status.ready else status.reason or "the engine core is not ready"


def capabilities(engine: EngineInfo) -> tuple[str, ...]:
    """What the model does, in Ollama's words."""
    welcome, template = engine.welcome, engine.text.template
    if welcome.pooling is not None:
        return ("embedding",)
    found = ["completion"]
    if fim_tokens(engine.text.tokenizer) is not None:
        found.append("insert")
    if welcome.media is not None and "image" in welcome.media.kinds:
        found.append("vision")
    if template is not None:
        if template.names("tools"):
            found.append("tools")
        if reasoning_parser(engine.config.reasoning_parser, template.source, welcome.family):
            found.append("thinking")
    return tuple(found)


NOBODYS = ("dummy", "tgi")
"""What Hugging Face's InferenceClient, and TGI's users, write where there is a URL and no model."""
LATEST = ":latest"
"""The tag that Ollama's clients write after a name without one, on every API."""


class ModelRegistry:
    """backends: one for each model, in the order in which they are listed.

    Raises StartupError where two have a name in common.
    """

    def __init__(self, backends: Sequence[ModelBackend]) -> None:
        self.backends = tuple(backends)
        given = [name for each in backends for name in each.given_names]
        twice = next((name for name in given if given.count(name) > 1), None)
        if twice is not None:
            raise StartupError(f"two models are named {twice!r}; names must be unique")

    @property
    def several(self) -> bool:
        """Whether requests must say which one they ask for."""
        return len(self.backends) > 1

    def names(self) -> list[str]:
        """What requests may ask for, as far as it is known."""
        return [name for backend in self.backends for name in backend.names()]

    def backend_of(self, name: str | None) -> ModelBackend:
        """Whose a request is that asks for `name`.

        Raises HTTPError 404 for an unknown name, and InvalidRequest for none where there are
        several models.
        """
        if not self.several:
            return self.backends[0]  # Its error about the name is the best.
        if name is None:
            raise InvalidRequest(
                f"model is missing; this server serves {listed(self._allowed())}",
                param="model",
                code="missing_model",
            )
        for backend in self.backends:
            if name in backend.given_names:
                return backend  # Whatever engine cores of others call themselves.
        for backend in self.backends:
            if name in backend.model_names():
                return backend
        for backend in self.backends:
            if backend.has_adapter(name):
                return backend
        raise model_not_found(name, self._allowed())

    def with_adapter(self, name: str) -> ModelBackend:
        """The model that has an adapter of this name; if none has, the first model, which refuses
        the name."""
        known = (each for each in self.backends if each.client.adapters.find(name) is not None)
        return next(known, self.backends[0])

    def check_free(self, name: str, own: ModelBackend) -> None:
        """Raises InvalidRequest where another model than `own`, or its adapter, is called so."""
        if any(each is not own and each.knows(name) for each in self.backends):
            raise InvalidRequest(
                f"{clip(name)} is the name of another model or of its adapter",
                param="lora_name",
            )

    def knows(self, name: str) -> bool:
        """Whether a model or an adapter is called so."""
        return any(backend.knows(name) for backend in self.backends)

    def _without_tag(self, name: str | None) -> str | None:
        """The name without the tag that stands for no tag, unless something is served under that
        very name. An empty name is none, and so are NOBODYS: some clients send them where no model
        was chosen."""
        name = name or None
        if name in NOBODYS and not self.knows(name):
            return None
        if name is None or not name.endswith(LATEST) or self.knows(name):
            return name
        return name.removesuffix(LATEST)

    def named(self, name: str | None) -> ModelBackend:
        """Whose model that is, loaded or not. Raises as `backend_of` and `ModelBackend.named`
        do."""
        name = self._without_tag(name)
        backend = self.backend_of(name)
        backend.named(name)
        return backend

    def ask(self, name: str | None) -> AskedModel:
        """Returns the model in its present state, without starting it. Raises as `backend_of` and
        `ModelBackend.ask` do."""
        name = self._without_tag(name)
        return self.backend_of(name).ask(name)

    @asynccontextmanager
    async def using(
        self, name: str | None, deadline: float | None = None
    ) -> AsyncIterator[AskedModel]:
        """Around all work for a request: its model is there, and stays.

        deadline: until when the request waits for a model that has to be started, on the monotonic
        clock.  Raises as `ask` does, DeadlineExceeded and Overloaded.
        """
        name = self._without_tag(name)
        backend = self.backend_of(name)
        residence = backend.residence
        if residence is None:
            yield backend.ask(name)
            return
        backend.named(name)  # What can't be asked for starts nothing.
        async with residence.stay(deadline) as waited:
            yield replace(backend.ask(name), waited=waited)

    def _allowed(self) -> list[str]:
        caller = current.get()
        return [name for name in self.names() if caller.may_use(name)]
