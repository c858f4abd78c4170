"""Which replica gets a request: the gateways' own policies, under the names of the command line."""

from __future__ import annotations

from penstock.client.routing import AFFINITY_TOKENS, Routing, RoutingRequest
from penstock.client.routing_policies import POLICIES
from penstock.errors import InvalidRequest
from penstock.protocol.from_frontend import Submit

ROUTERS = {
    "round-robin": "round-robin",
    "least-loaded": "least-loaded",
    "prefix-aware": "prefix",
}
"""Name of each here -> name of the gateways' policy."""


def make_router(name: str) -> Routing:
    """Raises InvalidRequest for a name that isn't in ROUTERS."""
    if name not in ROUTERS:
        known = ", ".join(ROUTERS)
        raise InvalidRequest(f"unknown routing policy {name!r}; allowed: {known}")
    return POLICIES[ROUTERS[name]]()


def routing_request(submit: Submit) -> RoutingRequest:
    """What a gateway would ask of its policy."""
    return RoutingRequest(
        submit.prompt_token_ids,
        AFFINITY_TOKENS,
        submit.tenant,
        submit.cache_salt,
        adapter="" if submit.adapter is None else submit.adapter.digest,
        session="" if submit.session is None else submit.session.id,
    )
