"""Fetches a file by URL from the domains that the operator allows, and from nowhere else.

A name is resolved once, every address that it has is checked, and a checked address is dialled, so
that no second answer of a name server counts.  Redirects are followed by hand, and checked alike.
What is said of a failure names the host and no address.
"""

from __future__ import annotations

import asyncio
import functools
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

from penstock.errors import PenstockError
from penstock.media.http_answer import AnswerHead, BadAnswer, read_body, read_head
from penstock.media.words import SourceKind
from penstock.version import __version__

# Which addresses of the network media may be fetched from: public ones only.
#
# The registries of special addresses are IANA's, as Python's `ipaddress` knows them.

_TRANSLATED = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
"""NAT64: an IPv4 address within; a gateway may lead to private ones (RFC 6052, 8215)."""


def is_public(text: str) -> bool:
    """Whether an address, as `getaddrinfo` writes it, is neither private, loopback, link-local nor
    of any other special kind, nor hides one that is."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv4Address):
        return _is_plain(address)
    hidden = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(inner is not None and not _is_plain(inner) for inner in hidden):
        return False
    if address.ipv4_mapped is not None:
        return True
    return _is_plain(address) and not any(address in network for network in _TRANSLATED)


def _is_plain(address: IPv4Address | IPv6Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_unspecified
        and not address.is_loopback
        and not address.is_link_local
        and not address.is_private
    )


MAX_URL = 8192
"""Characters."""
MAX_REDIRECTS = 3
MAX_FETCHES = 32
"""Most downloads at a time."""
MAX_RESOLVERS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_PLAIN_URL = re.compile(r"[!-\[\]-~]+")
"""Printable ASCII without blanks and backslashes, on which parsers of URLs disagree."""

Resolve = Callable[[str, int], Awaitable[list[str]]]


class Unfetchable(Exception):
    """Says why, to follow "the picture"."""


class _Target(NamedTuple):
    host: str
    port: int
    path: str
    secure: bool


class Fetcher:
    """Belongs to one event loop. domains: allowed, lower case.  seconds: for one fetch, redirects
    included.  resolve, permitted: where names lead, and whether one may go there; for tests."""

    def __init__(
        self,
        domains: frozenset[str],
        seconds: float,
        *,
        resolve: Resolve | None = None,
        permitted: Callable[[str], bool] = is_public,
    ) -> None:
        self._domains = domains
        self._seconds = seconds
        self._resolve = resolve or _addresses
        self._permitted = permitted
        self._free = asyncio.Semaphore(MAX_FETCHES)

    async def fetch(
        self, url: str, take: Callable[[int], None], kind: SourceKind = "image"
    ) -> bytes:
        """The file's bytes. take: asked for room for so many bytes before they are read; may raise.
        kind: that the server is asked for. Raises Unfetchable."""
        self.check(url)
        async with self._free:
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._follow(url, take, kind)
            except PenstockError:  # What `take` raises; some are ValueErrors.
                raise
            except TimeoutError:
                raise Unfetchable(f"takes longer than {self._seconds:g} s to fetch") from None
            except BadAnswer as error:
                raise Unfetchable(f"can't be fetched: {error}") from None
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
                raise Unfetchable(
                    f"can't be fetched: {urlsplit(url).hostname} doesn't answer as it should"
                ) from None

    def check(self, url: str) -> None:
        """Raises Unfetchable for a URL that isn't allowed, whatever answers there."""
        self._target(url)

    async def _follow(self, url: str, take: Callable[[int], None], kind: SourceKind) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            target = self._target(url)
            answer = await self._get(target, take, kind)
            if isinstance(answer, bytes):
                return answer
            url = urljoin(url, answer.fields.get("location", ""))
        raise Unfetchable(f"can't be fetched: there are more than {MAX_REDIRECTS} redirects")

    def _target(self, url: str) -> _Target:
        if not url:
            raise Unfetchable("has an empty URL; a data: URI, or http: or https:, is needed")
        if len(url) > MAX_URL or not _PLAIN_URL.fullmatch(url):
            raise Unfetchable(
                f"has a URL that is longer than {MAX_URL} characters, or holds others than "
                "printable ASCII"
            )
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise Unfetchable("has an invalid URL") from None
        if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
            raise Unfetchable("has a URL that is neither http nor https, or names a user")
        if not self._domains:
            raise Unfetchable(
                "has a URL; nothing is fetched here (--allowed-media-domains says from where it "
                "may be); send a data: URI"
            )
        if host not in self._domains:
            raise Unfetchable(
                f"has a URL at {host[:100]}; allowed: {', '.join(sorted(self._domains)[:20])}"
            )
        secure = parts.scheme == "https"
        return _Target(host, port or (443 if secure else 80), _path(parts), secure)

    async def _get(
        self, target: _Target, take: Callable[[int], None], kind: SourceKind
    ) -> bytes | AnswerHead:
        """The body, or the head of a redirect."""
        addresses = await self._resolve(target.host, target.port)
        if not addresses or not all(map(self._permitted, addresses)):
            raise Unfetchable(
                f"has a URL at {target.host}, which is not a public address; media are fetched "
                "only from public addresses"
            )
        reader, writer = await _dial(target, addresses)
        try:
            writer.write(_request(target, kind))
            await writer.drain()
            head = await read_head(reader)
            if head.status in _REDIRECTS and head.fields.get("location"):
                return head
            if head.status != 200:
                raise Unfetchable(f"can't be fetched: {target.host} answers {head.status}")
            return await read_body(reader, head, take)
        finally:
            writer.transport.abort()


async def _dial(
    target: _Target, addresses: list[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError where none of the addresses answers."""
    error: OSError = OSError("no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(
                address,
                target.port,
                ssl=_context() if target.secure else None,
                server_hostname=target.host if target.secure else None,
                limit=16_384,
            )
        except OSError as failure:
            error = failure
    raise error


async def _addresses(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    ask = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await loop.run_in_executor(_resolvers(), ask)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@functools.cache
def _resolvers() -> ThreadPoolExecutor:
    """Threads for names alone: a name server that takes its time holds up nothing else."""
    return ThreadPoolExecutor(MAX_RESOLVERS, thread_name_prefix="resolve")


@functools.cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _path(parts: SplitResult) -> str:
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path


def _request(target: _Target, kind: SourceKind) -> bytes:
    usual = 443 if target.secure else 80
    name = f"[{target.host}]" if ":" in target.host else target.host
    accepted = "*/*" if kind == "document" else f"{kind}/*"
    host = name if target.port == usual else f"{name}:{target.port}"
    return (
        f"GET {target.path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: penstock/{__version__}\r\n"
        f"Accept: {accepted}\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
    ).encode("ascii")
