"""Gateways that are killed while two models are served, or while clients give up: every answer that
is read to its end is the undisturbed one, and nothing is kept of those that aren't."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from penstock.cli.main import main
from testing.metrics_page import PORTS
from testing.serving import PATIENCE, Server, wait_until
from testing.tiny_models import write_gguf
from tests.system.test_resumed_streams import (
    ASKED,
    CHAT,
    COMPLETIONS,
    Counting,
    Reader,
    engine_page,
    kill_all,
)

pytestmark = [pytest.mark.timeout(400)]

GATEWAYS = ["gateway 0", "gateway 1"]
TWO = ("--gateways", "2")
ROUNDS = 2


def test_two_models_answers_outlive_all_gateways(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """Each is whole, of its own model, and that of the undisturbed request."""
    shapes = {"one": (3, 1), "two": (4, 2)}
    entries = [
        {"name": name, "model": str(write_gguf(tmp_path / f"{name}.gguf", heads=h, kv_heads=k))}
        for name, (h, k) in shapes.items()
    ]
    listed = tmp_path / "models.yaml"
    listed.write_text(yaml.safe_dump({"models": entries}))
    server = start_server("--models", str(listed), *TWO)
    asked: list[tuple[str, dict[str, Any]]] = [
        (
            COMPLETIONS,
            {
                "model": name,
                "prompt": f"hello {number}",
                "seed": number,
                "temperature": 0.8,
                "max_tokens": 110,
                "ignore_eos": True,
            },
        )
        for number in range(24)
        for name in shapes
    ]
    with ThreadPoolExecutor(len(asked)) as pool:
        undisturbed = list(pool.map(Reader(server).read, asked))
        reader = Reader(server)
        reading = [pool.submit(reader.read, each) for each in asked]
        wait_until(lambda: reader.begun > 4)
        kill_all(server, GATEWAYS)
        disturbed = [each.result(PATIENCE) for each in reading]
    assert reader.resumed > 0
    assert disturbed == undisturbed
    for (_, body), one in zip(asked, disturbed, strict=True):
        assert one["model"] == body["model"]
    texts = ["".join(str(v) for n, v in one.items() if n.endswith("text")) for one in disturbed]
    for first, second in zip(texts[::2], texts[1::2], strict=True):
        assert first
        assert first != second  # Models do differ.


def test_a_receipt_of_a_stream_that_outlives_its_gateways(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """It is of all of the answer, signed by the server's key, and stands up to being verified."""
    server = start_server("--receipt-key-file", str(tmp_path / "receipts.pem"), *TWO)
    body = {
        "messages": ASKED,
        "temperature": 0.9,
        "seed": 4,
        "n": 2,
        "max_tokens": 200,
        "ignore_eos": True,
        "penstock_receipt": "logprobs",
    }

    def receipt(*, killed: bool) -> dict[str, Any]:
        reader = Reader(server)
        events = []
        for event in Counting(reader, server.url, None, PATIENCE).resumed_events(
            CHAT, body, PATIENCE
        ):
            events.append(event)
            if killed and len(events) == 20:
                kill_all(server, GATEWAYS)
        assert bool(reader.resumed) == killed
        (found,) = [event["penstock_receipt"] for event in events if "penstock_receipt" in event]
        return dict(found)

    whole, broken = receipt(killed=False), receipt(killed=True)
    assert broken["tokens"] == whole["tokens"]
    assert [len(ids) for ids in broken["tokens"]["outputs"]] == [200, 200]
    key, file = tmp_path / "key.json", tmp_path / "receipt.json"
    key.write_text(json.dumps(server.get("/v1/receipts/key")[1]))
    file.write_text(json.dumps(broken))
    assert main(["verify", str(file), "--key", str(key), "--num-kv-blocks", "256"]) == 0


class Quitter:
    """Clients that read a little of a stream and close it, again and again."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.enough = threading.Event()
        self.quit = 0

    def run(self, number: int) -> None:
        body = {
            "model": self._server.model,
            "prompt": f"hello {number}",
            "max_tokens": 110,
            "ignore_eos": True,
            "n": 1 + number % 2,
            "seed": number,
            "stream": True,
            "stream_options": {"resumable": number % 3 == 0},
        }
        with httpx.Client(base_url=self._server.url, timeout=PATIENCE) as client:
            while not self.enough.is_set():
                try:
                    self._read_some(client, body, number % 7)
                except httpx.HTTPError:
                    continue  # Its gateway was killed.

    def _read_some(self, client: httpx.Client, body: dict[str, Any], lines: int) -> None:
        with client.stream("POST", COMPLETIONS, json=body) as reply:
            for count, _ in enumerate(reply.iter_lines()):
                if count >= lines:
                    break
        self.quit += 1


def test_clients_that_give_up_while_gateways_are_killed_leave_nothing(
    start_server: Callable[..., Server], tiny_model: str
) -> None:
    server = start_server(tiny_model, "--num-kv-blocks", "256", *TWO, *PORTS)
    expected = [server.complete(f"hello {number}", max_tokens=40) for number in range(4)]
    quitter, clients = Quitter(server), 24
    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(quitter.run, number) for number in range(clients)]
        try:
            for _ in range(ROUNDS):
                before = quitter.quit
                wait_until(lambda n=before: quitter.quit > n + clients)
                kill_all(server, GATEWAYS)
            before = quitter.quit
            wait_until(lambda: quitter.quit > before + clients)
        finally:
            quitter.enough.set()
        for each in running:
            each.result(PATIENCE)

    def idle() -> bool:
        engine = server.get("/status")[1]["engine"]
        left = engine["running"], engine["waiting"], engine["blocks_used"]
        return left == (0, 0, 0) and engine["blocks_free"] == engine["blocks_total"]

    wait_until(idle, message=lambda: str(server.get("/status")))
    page = engine_page(server)
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        assert page.value(name) == 0
    assert page.value("penstock:orphaned_requests") == 0
    assert page.value("vllm:kv_cache_usage_perc") == 0
    assert [server.complete(f"hello {n}", max_tokens=40) for n in range(4)] == expected
