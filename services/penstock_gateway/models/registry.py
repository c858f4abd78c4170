"""All models of this gateway, and how a request's model is found among them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from penstock.errors import InvalidRequest, StartupError
from penstock_gateway.http.errors import clip, listed, model_not_found
from penstock_gateway.keys.caller import current
from penstock_gateway.models.backend import AskedModel, ModelBackend

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

        Raises HTTPError 404 for a name that nobody has, and InvalidRequest for none where there
        are several models.
        """
        if not self.several:
            return self.backends[0]  # Which knows best what is wrong with the name.
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
        very name."""
        if name is None or not name.endswith(LATEST) or self.knows(name):
            return name
        return name.removesuffix(LATEST)

    def ask(self, name: str | None) -> AskedModel:
        """The model as it is, which nobody starts for this. Raises as `backend_of` and
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
