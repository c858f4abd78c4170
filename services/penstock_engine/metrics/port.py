"""The engine core's metrics port, in a thread next to its loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from prometheus_client.core import Metric

from penstock.config.settings import MetricsSettings
from penstock.metrics.families import CONTENT_TYPE, renderer
from penstock.metrics.port import Page, Reply, bind, health_page, serving
from penstock_engine.core import EngineCore
from penstock_engine.metrics.figures import families_of
from penstock_engine.metrics.observed import EngineHealth, Observed


@contextmanager
def metrics_port(core: EngineCore, settings: MetricsSettings, port: int) -> Iterator[EngineCore]:
    """Serves it meanwhile. Gives the core that the loop is to use.

    Raises StartupError where the port can't be had.
    """
    observed = Observed(core)
    sock = bind(settings.metrics_host, port, "--engine-metrics-port")
    health = EngineHealth(observed, core.state.facts.config.transport.beat_interval / 4)
    with serving(sock, pages(health)):
        yield cast(EngineCore, observed)


def pages(health: EngineHealth) -> dict[str, Page]:
    """The pages of the port, by path."""

    def collect() -> Iterator[Metric]:
        state = health.snapshot()
        if state is not None:
            yield from families_of(state, ready=not (health.stuck() or state.unready))

    render = renderer(collect)
    return {
        "/metrics": lambda: Reply(200, render(), CONTENT_TYPE),
        "/health/live": health_page(health.dead),
        "/health/ready": health_page(health.unready),
    }
