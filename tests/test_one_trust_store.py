"""Clients of httpx that trust what all trust share its certificates; others have their own."""

from __future__ import annotations

import ssl
from pathlib import Path

import certifi
import httpx
import pytest


def context_of(client: httpx.Client) -> ssl.SSLContext:
    """What its connections over TLS are checked with."""
    context: ssl.SSLContext = client._transport._pool._ssl_context  # type: ignore[attr-defined]
    return context


def test_who_asks_for_nothing_of_its_own_shares_the_certificates() -> None:
    with httpx.Client() as first, httpx.Client() as second:
        assert context_of(first) is context_of(second)
        assert context_of(first).verify_mode is ssl.CERT_REQUIRED
        assert len(context_of(first).get_ca_certs()) > 100


def test_who_asks_for_something_of_its_own_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = ssl.create_default_context()
    with httpx.Client() as shared, httpx.Client(verify=False) as careless, httpx.Client(
        verify=own
    ) as owner:  # fmt: skip
        assert context_of(careless).verify_mode is ssl.CERT_NONE
        assert context_of(owner) is own
        copy = tmp_path / "own.pem"
        copy.write_bytes(Path(certifi.where()).read_bytes())
        monkeypatch.setenv("SSL_CERT_FILE", str(copy))
        with httpx.Client() as by_file:
            assert context_of(by_file) is not context_of(shared)
