"""The policies by which engine cores are chosen, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.client.routing import (
    AnEngine,
    LeastLoaded,
    PrefixAffinity,
    Routing,
    RoutingRequest,
    Why,
)
from penstock.config.plugins import ROUTING, named_plugin
from penstock.errors import StartupError


class RoundRobin:
    """Chooses engine cores one after another, whatever they have to do."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, ask: RoutingRequest, engines: Sequence[AnEngine]) -> tuple[AnEngine, Why]:
        if len(engines) == 1:
            return engines[0], "only"
        chosen = engines[self._next % len(engines)]
        self._next += 1
        return chosen, "turn"


POLICIES: dict[str, Callable[[], Routing]] = {
    "prefix": PrefixAffinity,
    "least-loaded": LeastLoaded,
    "round-robin": RoundRobin,
}


def make_routing(name: str) -> Routing:
    """A fresh policy: one of POLICIES, or a plug-in's. Raises StartupError for other names, and for
    a plug-in that can't be used."""
    if name in POLICIES:
        return POLICIES[name]()
    plugin = named_plugin(ROUTING, name, "--routing", POLICIES)
    try:
        made = plugin.value()  # type: ignore[operator]
    except Exception as error:
        raise StartupError(f"--routing {name}: {plugin.package} can't make it: {error}") from error
    if not callable(getattr(made, "choose", None)):
        raise StartupError(f"--routing {name}: {plugin.package} gives {made!r}, without `choose`")
    return made
