"""GET /docs: a page that shows the OpenAPI document, and sends requests. It loads nothing from
other servers, and says nothing of this one by itself: the document that it reads needs a key."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.service import Service

OPERATION = Operation(
    method="GET",
    path="/docs",
    summary="These pages",
    tag="operations",
    access="open",
    media_type="text/html",
)


def routes(service: Service) -> list[OperationRoute]:
    """The one route."""
    page = resources.files("penstock_gateway").joinpath("web/docs.html").read_text("utf-8")
    body, headers = page.encode(), {"content-security-policy": policy(page)}

    async def docs(request: Request) -> Response:
        return Response(body, headers=headers, media_type="text/html")

    return [OPERATION.route(docs)]


def policy(page: str) -> str:
    """Lets the page run its own script and style, and talk to this server; nothing else."""
    allowed = {
        tag: " ".join(f"'sha256-{_digest(text)}'" for text in re.findall(pattern, page, re.DOTALL))
        for tag, pattern in (
            ("script", r"<script>(.*?)</script>"),
            ("style", r"<style>(.*?)</style>"),
        )
    }
    return (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
