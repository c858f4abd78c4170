"""GET /live: the live view's data, as server-sent events."""

from penstock_gateway.live.endpoint import routes

__all__ = ["routes"]
