"""Where the hub is, and what its errors mean to a person.

HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_TOKEN and HF_HUB_OFFLINE are read by huggingface_hub.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from penstock.errors import ModelNotFound, PenstockError, StartupError
from penstock.hub.name import HubName


class HubUnreachable(ModelNotFound):
    """The hub can't be asked, whatever the model: there is no network, or none is allowed, or the
    hub has trouble."""


class Hub(msgspec.Struct, frozen=True, kw_only=True):
    """endpoint: URL without a trailing slash.  cache: huggingface_hub's folder of repositories."""

    endpoint: str
    cache: Path


def default_hub() -> Hub:
    """The hub and its cache, as the environment says."""
    from huggingface_hub import constants

    return Hub(endpoint=constants.ENDPOINT, cache=Path(constants.HF_HUB_CACHE))


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network."""
    from huggingface_hub import constants

    return bool(constants.is_offline_mode())


@contextmanager
def hub_errors(hub: Hub, name: HubName) -> Iterator[None]:
    """Turns what huggingface_hub, httpx and the disk raise into ModelNotFound or StartupError."""
    try:
        yield
    except (PenstockError, KeyboardInterrupt):
        raise
    except Exception as error:  # its errors share no base class
        raise _meaning(hub, name, error) from error


def _meaning(hub: Hub, name: HubName, error: Exception) -> PenstockError:
    import httpx
    from huggingface_hub import errors

    at = name.repository
    if isinstance(error, errors.OfflineModeIsEnabled):
        return HubUnreachable(
            f"{name} is neither a folder here, nor complete in the hub's cache ({hub.cache}), and "
            "could not be downloaded: HF_HUB_OFFLINE is set"
        )
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 0
    if isinstance(error, errors.GatedRepoError) or status == 403:
        return ModelNotFound(
            f"{at} is gated, and {_who()}: accept its terms at {hub.endpoint}/{at}, then set "
            "HF_TOKEN to a token that may read it, or log in with `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFound(f"{at} has no revision {name.revision!r} on {hub.endpoint}")
    if isinstance(error, errors.RepositoryNotFoundError) or status == 401:
        return ModelNotFound(
            f"there is no repository {at} on {hub.endpoint}, or it is private; for a private one "
            "set HF_TOKEN, or log in with `hf auth login`"
        )
    if isinstance(error, errors.EntryNotFoundError):
        return ModelNotFound(f"{at} lists a file that {hub.endpoint} doesn't have: {_first(error)}")
    if status:
        after = asks_to_wait(error)
        return HubUnreachable(
            f"{at} could not be downloaded: {hub.endpoint} answers {status}; try again later"
            + (f", it says after {after:g} s" if after else "")
        )
    if isinstance(error, (httpx.TransportError, ConnectionError, TimeoutError)):
        return HubUnreachable(
            f"{name} is neither a folder here, nor complete in the hub's cache, and could not be "
            f"downloaded: {hub.endpoint} can't be reached ({_first(error)}); {_way()}"
        )
    if isinstance(error, OSError):
        return StartupError(
            f"{name} can't be written to the hub's cache ({hub.cache}): {error.strerror or error}; "
            "make room, or set HF_HOME to another folder"
        )
    return ModelNotFound(f"{name} could not be downloaded ({_first(error)})")


def asks_to_wait(error: Exception) -> float:
    """Seconds that a hub's refusal asks to wait; 0 if it asks for nothing."""
    response = getattr(error, "response", None)
    after = "" if response is None else str(response.headers.get("Retry-After", "")).strip()
    return float(after[:12]) if after.isascii() and after.isdecimal() else 0.0


_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")


def _way() -> str:
    """What decides how the hub is reached, as the environment has it."""
    proxy = next((name for name in _PROXIES if os.environ.get(name)), None)
    proxied = (
        f"{proxy} is {_without_password(os.environ[proxy])}"
        if proxy
        else "behind a proxy, set HTTPS_PROXY"
    )
    mirrored = (
        "HF_ENDPOINT names this hub"
        if os.environ.get("HF_ENDPOINT")
        else "for a mirror, set HF_ENDPOINT"
    )
    return f"{proxied}; {mirrored}"


def _without_password(url: str) -> str:
    """A proxy's address, fit for a log: what stands before an @ may be a password."""
    scheme, slashes, rest = url.rpartition("://")
    return (scheme + slashes + rest.rpartition("@")[2])[:200]


def _who() -> str:
    from huggingface_hub import get_token

    return "the token of HF_TOKEN has no access" if get_token() else "no token is set"


def _first(error: Exception) -> str:
    """What it says, which may be the hub's own words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = "".join(c if c.isprintable() else "\ufffd" for c in lines[0])[:500] if lines else ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
