"""Whatever the message of whichever gRPC method is full of, the event loop of the process that
answers stands still for no more than 50 ms."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2

from penstock.config.settings import GatewayConfig
from penstock_gateway.app import create_app
from penstock_gateway.service import Service
from penstock_rpc.calls import Calls
from penstock_rpc.exchange import RunningCalls
from penstock_rpc.kserve.tensors import _CONTENTS, _FORMATS
from penstock_rpc.protos.inference_pb2 import GenerateRequest
from penstock_rpc.protos.kserve_pb2 import InferTensorContents, ModelInferRequest
from penstock_rpc.protos.openai_pb2 import PostRequest
from penstock_rpc.server import MAX_MESSAGE, RpcServer
from penstock_rpc.services import REFLECTION_METHODS as REFLECTION
from penstock_rpc.services import handlers_of, routes_of
from tests import thinning
from tests.gateway.fake_engine import MODEL, FakeEngineClient, status
from tests.gateway.heartbeat.beaten import PATIENCE, BeatenLoop
from tests.gateway.heartbeat.beating import collecting_as_a_gateway, latest
from tests.gateway.heartbeat.bodies import FILLS
from tests.gateway.heartbeat.engines import GeneratingEngine, PoolingEngine
from tests.gateway.heartbeat.messages import Case, Fill, cases_of

pytestmark = pytest.mark.timeout(1800)

Input = ModelInferRequest.InferInputTensor
INFER = "/inference.GRPCInferenceService/ModelInfer"
SMALL = 2000
STEP = 16
CASES = 1
"""Cases of a method, without --long; of methods whose messages have no fields, one tells all."""
ALWAYS = ("media of empty ones", "input_ids of BOOL [n] of as much as there is room for")

EXAMPLES: dict[str, Message] = {
    "vllm.GenerateRequest": GenerateRequest(text="Hi"),
    "inference.ModelInferRequest": ModelInferRequest(model_name=MODEL),
    "penstock.v1.PostRequest": PostRequest(path="/tokenize"),
}
SEEDS: dict[str, Message] = {
    "inference.ModelInferRequest.InferInputTensor": Input(
        name="text_input", datatype="BYTES", shape=[1]
    ),
}


def methods() -> dict[str, Descriptor]:
    """The request of every method that is served."""
    app = create_app(FakeEngineClient(), GatewayConfig())  # type: ignore[arg-type]
    found = {}
    for path in handlers_of(Calls(app, app.state.service, RunningCalls())):
        _, service, method = path.split("/")
        if path in REFLECTION:
            found[path] = reflection_pb2.ServerReflectionRequest.DESCRIPTOR
            continue
        about = descriptor_pool.Default().FindServiceByName(service)
        found[path] = about.methods_by_name[method].input_type
    return found


METHODS = methods()


def raw_tensors() -> Iterator[Case]:
    """Inputs of KServe whose contents are raw: as many elements as there is room for."""
    for name in ("text_input", "input_ids", "stream", "sampling_parameters"):
        for datatype in _CONTENTS:
            for shape in ("n", "1, n", "n, 1"):
                yield _whole(
                    f"{name} of {datatype} [{shape}]", partial(_raw, name, datatype, shape)
                )
    for fill in ("keys", "lists in lists", "many values", "escapes", "decimals"):
        yield _whole(f"sampling_parameters with {fill}", partial(_sampling, fill))


def _whole(field: str, make: Fill) -> Case:
    return Case(field, "as much as there is room for", b"", lambda filled: filled, make)


def _raw(name: str, datatype: str, shape: str, size: int) -> bytes:
    each = struct.calcsize(_FORMATS.get(datatype, "I"))
    count = (size - 100) // each
    lengths = [count if place == "n" else 1 for place in shape.split(", ")]
    tensor = Input(name=name, datatype=datatype, shape=lengths)
    return ModelInferRequest(
        model_name=MODEL, inputs=[tensor], raw_input_contents=[bytes(each * count)]
    ).SerializeToString()


def _sampling(fill: str, size: int) -> bytes:
    text = b'{"x":' + FILLS[fill][1](size - 200) + b"}"
    given = {"text_input": b"Hi", "sampling_parameters": text}
    inputs = [
        Input(
            name=name,
            datatype="BYTES",
            shape=[1],
            contents=InferTensorContents(bytes_contents=[value]),
        )
        for name, value in given.items()
    ]
    return ModelInferRequest(model_name=MODEL, inputs=inputs).SerializeToString()


class BeatenCalls(BeatenLoop):
    """Calls of a server on that loop. client: see calling. file: for messages."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: FakeEngineClient,
        client: subprocess.Popen[str],
        file: Path,
    ) -> None:
        super().__init__(loop)
        self._engine = engine
        self._client = client
        self._file = file

    def give(self, message: bytes) -> None:
        """What the next calls send."""
        self._file.write_bytes(message)

    def call(self, path: str, awaited: str = "first") -> str:
        """The code of the answer, or of its first message."""
        self._engine.status = status()
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(f"{path} {self._file} {awaited}\n")
        self._client.stdin.flush()
        return self._client.stdout.readline().strip()


@contextmanager
def called(engine: FakeEngineClient, folder: Path) -> Iterator[BeatenCalls]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def served() -> tuple[RpcServer, Service]:
        config = GatewayConfig(grpc_port=0, shutdown_timeout=0.0)
        running = RunningCalls()
        app = create_app(
            engine,  # type: ignore[arg-type]
            config,
            more=lambda service: routes_of(service, running),
        )
        service: Service = app.state.service
        server = RpcServer(Calls(app, service, running), config)
        await server.start()
        return server, service

    async def leave(server: RpcServer, service: Service) -> None:
        await server.stop()
        service.close()

    try:
        server, service = asyncio.run_coroutine_threadsafe(served(), loop).result(PATIENCE)
        with _client(server.port) as client:
            found = BeatenCalls(loop, engine, client, folder / f"message-{server.port}")
            found.begin()
            yield found
            found.end()
        asyncio.run_coroutine_threadsafe(leave(server, service), loop).result(PATIENCE)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


@contextmanager
def _client(port: int) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        (sys.executable, "-m", "tests.gateway.heartbeat.calling", f"127.0.0.1:{port}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            yield client
        finally:
            client.kill()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BeatenCalls]]:
    """Servers by what their model does."""
    engines = {"generate": GeneratingEngine(), "embed": PoolingEngine()}
    folder = tmp_path_factory.mktemp("messages")
    with collecting_as_a_gateway(), ExitStack() as stack:
        yield {name: stack.enter_context(called(e, folder)) for name, e in engines.items()}


def cases(path: str) -> list[Case]:
    about = METHODS[path]
    example = EXAMPLES.get(about.full_name) or GetMessageClass(about)()
    found = list(cases_of(about, example, SEEDS))
    if path == INFER:
        found += raw_tensors()
    if thinning.every:
        return found
    shift = list(METHODS).index(path) / len(METHODS)
    by_chance = sorted(found, key=lambda case: (shift + found.index(case) * thinning.GOLDEN) % 1)
    always = [case for case in found if f"{case.field} of {case.fill}" in ALWAYS]
    return [*always, *by_chance[:CASES]]


WITH_FIELDS = [path for path, about in METHODS.items() if about.fields]
WITHOUT = [path for path in METHODS if path not in WITH_FIELDS]


@pytest.mark.parametrize(
    "path",
    [
        *WITH_FIELDS,
        WITHOUT[0],
        *(pytest.param(path, marks=pytest.mark.long) for path in WITHOUT[1:]),
    ],
)
def test_a_message_full_of_anything(servers: dict[str, BeatenCalls], path: str) -> None:
    server = servers["embed" if path.endswith("Embed") else "generate"]
    late = [told for case in cases(path) for told in told_of(server, path, case)]
    assert not late, "\n".join(late)


def told_of(server: BeatenCalls, path: str, case: Case) -> Iterator[str]:
    """The largest message, and where it is refused also one that isn't: what came late."""
    size = MAX_MESSAGE
    while size > SMALL:
        message = case.body(size)
        server.give(message)
        code, late = server.watched(lambda: server.call(path))
        if late > latest():
            yield (
                f"{case.field} of {case.fill}, {len(message)} bytes, {code}: "
                f"{1000 * late:.0f} ms late"
            )
        if code == "OK":
            return
        size //= STEP
