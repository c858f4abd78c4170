"""A routing policy: all requests of a tenant go to the same engine core, while that is there."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from penstock.client.routing import AnEngine, RoutingRequest, Why, least_loaded, rendezvous


class ByTenant:
    """`--routing by-tenant`. It keeps nothing, so that all gateways decide alike."""

    def choose(self, ask: RoutingRequest, engines: Sequence[AnEngine]) -> tuple[AnEngine, Why]:
        if len(engines) == 1:
            return engines[0], "only"
        if not ask.tenant:
            return least_loaded(ask, engines), "load"
        key = hashlib.blake2b(ask.tenant.encode(), digest_size=16).digest()
        return rendezvous(key, engines)[0], "prefix"
