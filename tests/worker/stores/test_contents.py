"""Blocks' contents where the CPU kernels are missing: the same checksum, and the log says so."""

from __future__ import annotations

import pytest

from penstock_kernels.cpu import kept, library
from penstock_worker.stores import contents
from tests.said import said


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("they were not built")

    monkeypatch.setattr(library, "load", missing)
    monkeypatch.setattr(contents, "_kernels", contents._kernels.__wrapped__)


@pytest.mark.usefixtures("without_kernels")
def test_a_slow_checksum_is_the_same_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, payload = bytes(range(16)), b"a block's contents" * 100
    slow = contents.checksum(key, payload)
    line = said(caplog)
    assert "computed in Python" in line
    assert "they were not built" in line
    monkeypatch.undo()
    assert kept.checksum(key, payload) == slow
