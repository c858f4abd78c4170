"""Ports for programs that run beside the tests."""

from __future__ import annotations

import errno
import socket

import pytest

from deploy import local


def test_a_free_port_can_be_bound() -> None:
    socket.create_server(("127.0.0.1", local.free_port())).close()


def test_a_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    free = local.free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], free])
        monkeypatch.setattr(local.random, "randrange", lambda *_: next(ports))
        assert local.free_port() == free


def test_where_no_port_can_be_bound_the_error_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refused(address: tuple[str, int]) -> socket.socket:
        tried.append(address)
        raise OSError(errno.EADDRNOTAVAIL, "no such address")

    monkeypatch.setattr(local.socket, "create_server", refused)
    with pytest.raises(OSError, match="no such address"):
        local.free_port()
    assert len(tried) == local.PORT_TRIES
