"""What the load balancer does with requests, seen by scripted gateways behind a real haproxy."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from deploy.local import HAPROXY_CONFIG, Balancer, haproxy
from testing.serving import PATIENCE, wait_until
from tests.deploy.programs import needed
from tests.deploy.scripted_gateway import Scripted, scripted_gateway

PATH = "/v1/completions"


@contextlib.contextmanager
def balanced(
    folder: Path,
    *answers: Callable[[], int | None],
    settings: Mapping[str, str] | None = None,
) -> Iterator[tuple[Balancer, list[Scripted]]]:
    """A scripted gateway for each answer, all of them in rotation."""
    needed("haproxy")
    with contextlib.ExitStack() as stack:
        gateways = [stack.enter_context(scripted_gateway(answer)) for answer in answers]
        addresses = [each.address for each in gateways]
        balancer = stack.enter_context(haproxy(addresses, folder, settings=settings))
        wait_until(lambda: all_up(balancer), message=balancer.servers)
        yield balancer, gateways


def all_up(balancer: Balancer) -> bool:
    return all(state == "UP" for state in balancer.servers().values())


def post(balancer: Balancer, body: bytes = b"{}", **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(balancer.url + PATH, content=body, headers=sent, timeout=120)


def ok() -> int:
    return 200


def refuses() -> int:
    return 503


def test_what_one_gateway_refuses_another_gets_whole(tmp_path: Path) -> None:
    body = b"x" * 30_000
    with balanced(tmp_path, refuses, ok) as (balancer, (refusing, serving)):
        got = [post(balancer, body).status_code for _ in range(20)]
        assert got == [200] * 20
        assert [each.body for each in serving.asked] == [body] * 20
        assert refusing.asked, "the test tests nothing if nobody was refused"


def test_a_gateway_that_dies_before_its_answer_is_no_failure(tmp_path: Path) -> None:
    with balanced(tmp_path, lambda: None, ok) as (balancer, (dying, serving)):
        assert [post(balancer).status_code for _ in range(20)] == [200] * 20
        assert len(serving.asked) == 20
        assert dying.asked


@pytest.mark.parametrize("status", [400, 429, 500, 502, 504])
def test_every_other_answer_is_the_answer(tmp_path: Path, status: int) -> None:
    with balanced(tmp_path, lambda: status, lambda: status) as (balancer, gateways):
        assert post(balancer).status_code == status
        assert sum(len(each.asked) for each in gateways) == 1


def test_a_503_of_all_is_told_after_four_attempts(tmp_path: Path) -> None:
    with balanced(tmp_path, refuses, refuses) as (balancer, gateways):
        assert post(balancer).status_code == 503
        assert sum(len(each.asked) for each in gateways) == 4


def test_a_body_too_large_to_be_kept_is_sent_once(tmp_path: Path) -> None:
    body = b"x" * 1_000_000
    with balanced(tmp_path, refuses, refuses) as (balancer, gateways):
        assert post(balancer, body).status_code == 503
        assert [each.body for one in gateways for each in one.asked] == [body]


def test_one_id_and_one_origin(tmp_path: Path) -> None:
    with balanced(tmp_path, ok) as (balancer, (gateway,)):
        lies = {"x_forwarded_for": "6.6.6.6", "forwarded": "for=6.6.6.6", "x_forwarded_proto": "x"}
        seen = post(balancer, **lies).json()
        assert seen["x-forwarded-for"] == "127.0.0.1"
        assert seen["x-forwarded-proto"] == "http"
        assert "forwarded" not in seen
        assert post(balancer, x_request_id="mine").json()["x-request-id"] == "mine"
        made = post(balancer)
        assert made.json()["x-request-id"] == made.headers["x-request-id"]
        assert len(made.headers["x-request-id"]) == 36
        assert "server" not in made.headers
        assert len({each.headers["x-request-id"] for each in gateway.asked}) == 3


def test_an_id_is_the_same_in_every_attempt(tmp_path: Path) -> None:
    with balanced(tmp_path, refuses, refuses) as (balancer, gateways):
        post(balancer)
        ids = [each.headers["x-request-id"] for one in gateways for each in one.asked]
        assert len(ids) == 4
        assert len(set(ids)) == 1


def test_no_spelling_of_metrics_gets_through(tmp_path: Path) -> None:
    with balanced(tmp_path, ok) as (balancer, (gateway,)):
        for path in ("/metrics", "/%6detrics", "/METRICS", "/metrics?x=1", "/metrics/"):
            answer = httpx.get(balancer.url + path, timeout=PATIENCE)
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "not_found"
        assert gateway.asked == []


def raw(balancer: Balancer, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", balancer.port), 60) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        got = b""
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(65_536):
                got += data
        return got


@pytest.mark.parametrize(
    "headers",
    [b"big: " + b"x" * 33_000 + b"\r\n", b"".join(b"h%d: x\r\n" % i for i in range(200))],
    ids=["one of 33 KB", "200 of them"],
)
def test_a_head_beyond_its_bounds_is_refused(tmp_path: Path, headers: bytes) -> None:
    with balanced(tmp_path, ok) as (balancer, (gateway,)):
        head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        assert raw(balancer, head + headers + b"\r\n").startswith(b"HTTP/1.1 400 ")
        assert gateway.asked == []
        fitting = b"big: " + b"x" * 30_000 + b"\r\n"
        assert raw(balancer, head + fitting + b"\r\n").startswith(b"HTTP/1.1 200 ")


def test_one_source_has_its_bound(tmp_path: Path) -> None:
    with balanced(tmp_path, ok, settings={"PENSTOCK_PER_SOURCE": "5"}) as (balancer, _):
        asked = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with contextlib.ExitStack() as stack:
            answers = []
            for _ in range(8):
                try:
                    connection = socket.create_connection(("127.0.0.1", balancer.port), 60)
                    stack.enter_context(connection)
                    connection.sendall(asked)
                    answers.append(connection.recv(100)[:12])
                except ConnectionError:
                    answers.append(b"")
        assert answers == [b"HTTP/1.1 200"] * 5 + [b""] * 3


def test_without_a_gateway_it_says_so(tmp_path: Path) -> None:
    with balanced(tmp_path, ok) as (balancer, (gateway,)):
        assert balancer.ready()
        gateway.ready = False
        wait_until(lambda: not balancer.ready())
        answer = post(balancer)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["code"] == "no_gateway"
        assert answer.headers["x-request-id"]
        gateway.ready = True
        wait_until(balancer.ready)
        assert post(balancer).status_code == 200


def test_its_own_counts_are_on_a_port_of_their_own(tmp_path: Path) -> None:
    with balanced(tmp_path, ok) as (balancer, _):
        post(balancer)
        text = httpx.get(f"http://{balancer.operations}/metrics", timeout=PATIENCE).text
        assert 'haproxy_backend_active_servers{proxy="gateways"} 1' in text
        assert "haproxy_frontend_http_responses_total" in text


def test_every_error_of_its_own_is_an_error_object() -> None:
    lines = [line.strip() for line in HAPROXY_CONFIG.read_text().splitlines()]
    bodies = [line.split("string '")[1].split("'")[0] for line in lines if "string '" in line]
    assert len(bodies) == 7
    for body in bodies:
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
