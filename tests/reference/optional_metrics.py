"""Metrics that only some systems have: where files are stored, where models come and go, and where
gateways share limits."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator

from prometheus_client.core import Metric

from penstock.client import EngineClient
from penstock.config.settings import GatewayConfig, StorageSettings
from penstock.metrics.families import Families, renderer
from penstock_gateway.keys.rate_limits import RateLimits
from penstock_gateway.metrics.endpoint import residence_families, storage_families
from penstock_gateway.metrics.rate_limits import rate_limit_families
from penstock_gateway.models.backend import ModelBackend, ModelRegistry
from penstock_gateway.models.residence import Residence
from penstock_gateway.service import LineCounts, Service
from penstock_gateway.storage.store import Store


def storage_metrics() -> str:
    """As /metrics has them, with an empty database."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(StorageSettings(data_dir=folder, stored_response_hours=1), folder)
        try:
            service = Service(ModelRegistry([_backend()]), GatewayConfig(), store=store)
            service.lines = LineCounts()
            asyncio.run(store.stock.look())
            return _shown(storage_families(service, Families("")))
        finally:
            store.close()


def residence_metrics() -> str:
    """As /metrics has them, of a model that isn't loaded."""
    backend = _backend()
    backend.residence = Residence(
        "", pinned=False, is_up=lambda: False, tell=lambda message: False, patience=1.0
    )
    return _shown(residence_families(backend, Families("")))


def rate_limit_metrics() -> str:
    """As /metrics has them, of a gateway that hasn't asked Redis yet."""
    limits = RateLimits("redis://nowhere:6379")
    return _shown(rate_limit_families(limits, Families("")))


def _backend() -> ModelBackend:
    return ModelBackend(EngineClient("ipc:///nowhere", name="docs"), GatewayConfig())


def _shown(families: Iterator[Metric]) -> str:
    found = list(families)
    return renderer(lambda: found)().decode()
