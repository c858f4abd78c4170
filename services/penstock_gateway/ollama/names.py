"""Names of models, which Ollama's clients write with a tag."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from penstock_gateway.service import Service

LATEST = ":latest"


class Named(Protocol):
    """A body that says for which model it is."""

    @property
    def model(self) -> str | None: ...


Request = TypeVar("Request", bound=Named)


def without_tag(request: Request, service: Service) -> Request:
    """The request, whose model loses the tag that stands for no tag; unless a model is served
    under that very name."""
    name, served = request.model, service.client.welcome
    if name is None or not name.endswith(LATEST):
        return request
    known = served is not None and name in (served.model, *served.other_names)
    if known or service.client.adapters.find(name) is not None:
        return request
    return msgspec.structs.replace(request, model=name.removesuffix(LATEST))  # type: ignore[type-var]
