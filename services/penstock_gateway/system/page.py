"""GET /: the page and its files, and GET /docs: Swagger UI over the OpenAPI document.

The files are read once, at startup, and each is a route of its own with a fixed path: request text
never becomes a file name. They contain nothing specific to this server, so they need no key; the
page's own requests do. /docs is this server's own copy too, and loads nothing from other servers;
the document that it reads needs a key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from penstock.recommend.fits import ORDINARY, better
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.service import Service

INDEX = "index.html"
BETTER_MODELS = b"<!-- better models -->"
"""What stands in the page in place of models that are better than the demonstration."""
ELSEWHERE = ("docs.html",)
"""Files with a route and a policy of their own; see docs.py."""

VENDORED = "vendor/"
"""Below it lies what others have written, as they publish it; vendor/VENDORED.txt says what."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The page's own files and this server's answers; no inline script or style, nothing of others."""

MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Kept by the browser, but asked for again each time: after an upgrade, old and new files must
    # not meet on one page.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page."""

    name: str
    """The file's path below web/."""
    body: bytes
    media_type: str
    tag: str
    """The file's ETag."""

    @property
    def operation(self) -> Operation:
        return Operation(
            method="GET",
            path="/" if self.name == INDEX else f"/{self.name}",
            summary="The page" if self.name == INDEX else f"A file of the web page: {self.name}",
            tag="page",
            access="open",
            media_type=self.media_type,
            described=self.name == INDEX,
        )

    def route(self) -> OperationRoute:
        """200 with the file, or 304 for a client that has it already."""
        headers = {**HEADERS, "etag": self.tag}

        async def answer(request: Request) -> Response:
            if _is_held(request.headers.get("if-none-match", ""), self.tag):
                return Response(status_code=304, headers=headers)
            return Response(self.body, headers=headers, media_type=self.media_type)

        return self.operation.route(answer)


def files() -> list[PageFile]:
    """What web/ holds."""
    root = resources.files("penstock_gateway").joinpath("web")
    return [_read(name, each) for name, each in sorted(_walk(root)) if name not in ELSEWHERE]


def _walk(folder: Traversable, below: str = "") -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _walk(each, f"{below}{each.name}/")
        else:
            yield f"{below}{each.name}", each


def _read(name: str, file: Traversable) -> PageFile:
    suffix = name[name.rfind(".") :]
    if suffix not in MEDIA_TYPES:
        raise ValueError(f"web/{name}: allowed file types: {', '.join(MEDIA_TYPES)}")
    body = file.read_bytes()
    if name == INDEX:
        body = body.replace(BETTER_MODELS, _better_models())
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return PageFile(name, body, MEDIA_TYPES[suffix], tag)


def _better_models() -> bytes:
    """The notice for a newcomer who sees the demonstration."""
    rate = f"{ORDINARY / 1e9:.0f} GB/s"
    rows = [
        f"<li>{each.gib:.1f} GiB of memory, an estimated {each.tokens_per_s:.0f} tokens a second"
        f" where memory reads {rate}: <code>make serve MODEL={each.name}</code></li>"
        for each in better()
    ]
    return "\n            ".join(rows).encode()


def _is_held(sent: str, tag: str) -> bool:
    """Whether an If-None-Match names the tag, weakly or not: a proxy that compresses weakens it."""
    return any(each.strip().removeprefix("W/") in (tag, "*") for each in sent.split(","))


DOCS = Operation(
    method="GET",
    path="/docs",
    summary="These pages",
    tag="operations",
    access="open",
    media_type="text/html",
)


def routes(service: Service) -> list[OperationRoute]:
    """The documents' page and one for each file. Raises ValueError for a file of a kind that the
    page has none of."""
    page = resources.files("penstock_gateway").joinpath("web/docs.html").read_bytes()

    async def docs(request: Request) -> Response:
        return Response(page, headers=HEADERS, media_type="text/html")

    return [DOCS.route(docs), *(file.route() for file in files())]
