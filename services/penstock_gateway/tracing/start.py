"""Whether there are traces, told without loading what makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import StartupError

if TYPE_CHECKING:
    from penstock.config.settings import GatewayConfig
    from penstock_gateway.tracing.tracer import Tracing


def tracing_of(config: GatewayConfig) -> Tracing | None:
    """None unless the configuration names an endpoint. Raises StartupError without the extra."""
    if config.otlp_traces_endpoint is None:
        return None
    try:
        from penstock_gateway.tracing.tracer import Tracing
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        raise StartupError(
            "--otlp-traces-endpoint needs OpenTelemetry, which is not installed: "
            "pip install 'penstock[otel]'"
        ) from None
    return Tracing.of(config)
