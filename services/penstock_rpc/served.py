"""What calls ask of the model that is served."""

from __future__ import annotations

from penstock.protocol.common import NamedAdapter
from penstock.protocol.to_frontend import Status, Welcome
from penstock_gateway.keys.ring import current
from penstock_gateway.service import Service


def model_facts(service: Service, name: str | None = None) -> Welcome:
    """What its engine core says of the model called `name`; None: of the one that is served.

    Raises EngineUnavailable, HTTPError 404 or 403, and InvalidRequest for no name where there are
    several models.
    """
    backend = service.models.backend_of(name)
    engine = backend.engine() if name is None else backend.ask(name).engine
    return engine.welcome


def pools(service: Service, name: str) -> bool:
    """Whether the model called so gives vectors, before the caller is known: so nothing is started
    for that, and one that has never been loaded passes for a model that generates. Raises
    EngineUnavailable."""
    models = service.models
    if models.several and not models.knows(name):
        return False  # Which is said where the key is known.
    backend = models.backend_of(name)
    known = backend.client.welcome if backend.on_demand else backend.engine().welcome
    return known is not None and known.pooling is not None


def model_state(service: Service) -> Status | None:
    """Returns the engine core's latest status, if any."""
    return service.models.backend_of(None).client.status


def adapters_of(service: Service) -> list[NamedAdapter]:
    """The adapters that the caller may use, of all models."""
    backends = service.models.backends
    if not service.models.several:
        backends[0].engine()
    caller = current.get()
    return [
        each
        for backend in backends
        for each in backend.client.adapters.present()
        if caller.may_use(each.name)
    ]
