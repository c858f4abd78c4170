"""gRPC through a whole system: the same tokens as over HTTP, whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from penstock_rpc.protos.inference_pb2 import (
    GenerateRequest,
    GenerateResponse,
    ResponseOptions,
    StoppingCriteria,
)
from penstock_rpc.protos.openai_pb2 import JsonReply, JsonRequest
from testing.serving import Server, wait_until
from tests.docs.snippets import snippets

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

STREAM = "/vllm.Inference/GenerateStream"


@pytest.fixture(scope="module")
def server(tiny_model: str) -> Iterator[Server]:
    with Server(tiny_model, "--grpc-port", "0", "--access-log", "json") as running:
        yield running


def address(server: Server) -> str:
    found = re.search(r"address=(127\.0\.0\.1:\d+) grpc=true", server.stderr, re.IGNORECASE)
    assert found is not None, server.stderr
    return found[1]


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(address(server)) as channel:
        yield channel


def generate(prompt: str, tokens: int = 24) -> GenerateRequest:
    return GenerateRequest(
        text=prompt,
        temperature=0.9,
        sampling={"seed": 5},
        stopping=StoppingCriteria(max_new_tokens=tokens, ignore_eos=True),
        response=ResponseOptions(output_token_ids=True),
    )


def stream(channel: grpc.Channel, message: GenerateRequest) -> Any:
    call = channel.unary_stream(
        STREAM,
        request_serializer=GenerateRequest.SerializeToString,
        response_deserializer=GenerateResponse.FromString,
    )
    return call(message, timeout=120, wait_for_ready=True)


def token_ids(replies: Any) -> list[int]:
    return [token for each in replies for token in each.outputs.token_ids]


def over_http(server: Server, prompt: str, tokens: int = 24) -> dict[str, Any]:
    body = {"prompt": prompt, "temperature": 0.9, "seed": 5, "max_tokens": tokens}
    body |= {"ignore_eos": True, "return_token_ids": True}
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    choice: dict[str, Any] = reply["choices"][0]
    return choice


def test_the_same_as_over_http(server: Server, channel: grpc.Channel) -> None:
    prompts = [f"Water number {n}" for n in range(8)]
    streams = [stream(channel, generate(prompt)) for prompt in prompts]
    expected = [over_http(server, prompt)["token_ids"] for prompt in prompts]
    assert [token_ids(each) for each in streams] == expected
    call = channel.unary_stream(
        "/penstock.v1.OpenAI/Complete",
        request_serializer=JsonRequest.SerializeToString,
        response_deserializer=JsonReply.FromString,
    )
    body = {"prompt": prompts[0], "temperature": 0.9, "seed": 5, "max_tokens": 24}
    body |= {"ignore_eos": True, "stream": True}
    replies = call(JsonRequest(json=json.dumps(body).encode()), timeout=120)
    chunks = [json.loads(each) for reply in replies for each in reply.json]
    text = "".join(each["choices"][0]["text"] for each in chunks)
    assert text == over_http(server, prompts[0])["text"]
    logged = [json.loads(line) for line in server.stderr.splitlines() if '"path"' in line]
    calls = {(each.get("call"), each["path"]) for each in logged}
    assert (STREAM, STREAM) in calls
    assert ("/penstock.v1.OpenAI/Complete", "/v1/completions") in calls


def test_a_dropped_stream_frees_its_request(server: Server, channel: grpc.Channel) -> None:
    running = stream(channel, generate("Drop", 100))
    next(running)
    running.cancel()

    def nothing_runs() -> bool:
        engines = server.get("/status")[1]["engines"]
        return all(not each["running"] and not each["waiting"] for each in engines)

    wait_until(nothing_runs)


def test_a_stream_outlives_the_engine_core(server: Server, channel: grpc.Channel) -> None:
    expected = over_http(server, "Survive", 100)["token_ids"]
    boot = server.get("/status")[1]["boot"]
    running = stream(channel, generate("Survive", 100))
    first = next(running)
    os.kill(server.child("engine"), signal.SIGKILL)
    assert token_ids([first, *running]) == expected
    # The stream may have been over before the blow.
    wait_until(lambda: server.engine_replaced(boot))


def test_the_process_comes_back_at_its_port(server: Server, channel: grpc.Channel) -> None:
    expected = over_http(server, "Again")["token_ids"]
    before = server.child("grpc")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: server.children().get("penstock: grpc", before) != before)
    check = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )

    def serving() -> bool:
        try:
            status: int = check(HealthCheckRequest(), timeout=30, wait_for_ready=True).status
        except grpc.RpcError:
            return False
        return status == HealthCheckResponse.ServingStatus.SERVING

    wait_until(serving)
    assert token_ids(stream(channel, generate("Again"))) == expected


def test_calls_that_come_while_it_is_dead_are_served(server: Server) -> None:
    """Calls wait until somebody listens, who has a session by then."""
    expected = over_http(server, "Once more")["token_ids"]
    for _ in range(3):
        os.kill(server.child("grpc"), signal.SIGKILL)
        quick = [("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 20)]
        with grpc.insecure_channel(address(server), [*quick]) as dialled:
            assert token_ids(stream(dialled, generate("Once more"))) == expected


def test_gateways_load_nothing_of_it(server: Server) -> None:
    gateway = psutil.Process(server.child("gateway 0"))
    assert not [each.path for each in gateway.memory_maps() if "grpc" in each.path]


def test_the_guides_python() -> None:
    blocks = snippets("docs/guides/grpc.md")
    (code,) = (each.code for each in blocks if "import grpc" in each.code)
    here = "127.0.0.1:50051"
    assert here in code
    with Server("--grpc-port", "0") as server:
        done = subprocess.run(
            [sys.executable, "-c", code.replace(here, address(server))],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
