"""Receipts of a model whose weights are replaced while its gateway runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config.settings import GatewayConfig
from penstock_receipts.statement import Statement
from tests.gateway.live_gateway import LiveGateway
from tests.receipts.test_served_receipts import SignedClient, ask, of


class Replaceable(SignedClient):
    """An engine core with the weights `a`, then others."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str | None] = []
        self.have("a")

    def have(self, *digests: str) -> None:
        """digests: of all engine cores; the first is that of the one that answers."""
        assert self.status is not None
        self.weights: Any = dict.fromkeys(sorted(digests))  # a set in an order of its own
        self.status = msgspec.structs.replace(
            self.status, weights=digests[0], fingerprint=f"computes with {digests[0]}"
        )

    async def hash_weights(self, weights: str | None = None) -> dict[str, str]:
        self.read.append(weights)
        return {"model.gguf": f"file of {weights}"}


@pytest.fixture
def gateway(tmp_path: Path):
    with LiveGateway(Replaceable(), GatewayConfig(receipt_key_file=str(tmp_path / "key"))) as one:
        yield one


def statement(gateway: LiveGateway) -> Statement:
    return of(ask(gateway, "/v1/completions", "1")[1])[1]


def test_each_names_the_weights_that_computed_it(gateway: LiveGateway) -> None:
    for digest in ("a", "b", "a"):
        gateway.engine.have(digest)
        for _ in range(2):
            said = statement(gateway)
            assert said.model.digest == digest
            assert said.model.weights == {"model.gguf": f"file of {digest}"}
            assert said.computing.fingerprint == f"computes with {digest}"
    assert gateway.engine.read == ["a", "b", "a"], "read once, and again when they come back"


def test_while_they_are_replaced_one_by_one(gateway: LiveGateway) -> None:
    """Some engine cores have the new ones, and the one that answers still has the old."""
    gateway.engine.have("a", "b")
    said = statement(gateway)
    assert (said.model.digest, said.model.weights) == ("a", {"model.gguf": "file of a"})
    gateway.engine.have("b", "a")
    said = statement(gateway)
    assert (said.model.digest, said.model.weights) == ("b", {"model.gguf": "file of b"})
    assert sorted(gateway.engine.read) == ["a", "b"]
