"""Names of models, which Ollama's clients write with a tag."""

from __future__ import annotations

from penstock_gateway.service import Service

LATEST = ":latest"


def without_tag(name: str | None, service: Service) -> str | None:
    """The name without the tag that stands for no tag; unless a model is served under that very
    name."""
    if name is None or not name.endswith(LATEST):
        return name
    if service.models.knows(name):
        return name
    return name.removesuffix(LATEST)
