"""What calls ask of the model that is served."""

from __future__ import annotations

from penstock.protocol.common import NamedAdapter
from penstock.protocol.to_frontend import Status, Welcome
from penstock_gateway.keys.caller import current
from penstock_gateway.service import Service


def model_facts(service: Service, name: str | None = None) -> Welcome:
    """What its engine core says of the model called `name`; None: of the one that is served.

    Raises EngineUnavailable, and HTTPError 404 or 403.
    """
    if name is not None:
        service.check_model(name)
    return service.engine().welcome


def model_state(service: Service) -> Status | None:
    """The engine core's latest word of itself."""
    return service.client.status


def adapters_of(service: Service) -> list[NamedAdapter]:
    """The adapters that the caller may use."""
    service.engine()
    caller = current.get()
    return [each for each in service.client.adapters.present() if caller.may_use(each.name)]
