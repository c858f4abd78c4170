"""A metered gateway over answering engine cores, each a process of its own, and what a body costs
its event loop."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from deploy.local import answers, wait
from testing.costs.answering_core import Answer
from testing.costs.metered_gateway import Report
from testing.costs.metered_loop import Turn
from testing.costs.models import MODELS

PATIENCE = 20.0
"""Processor seconds of the loop after which a body is given up that isn't answered, and its gateway
with it."""
LONGEST = 12 * PATIENCE
"""Seconds after which it is given up in any case."""
LOOK_EVERY = 0.2
Posted = tuple[int, str, int]
"""Status, or 0; the answer's beginning; its bytes."""
PYTHON = (sys.executable, "-m")


_CALLS = [
    {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in "cd"
]
ARRANGED = {
    "max_tokens": 1,
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "c", "tool_calls": _CALLS},
        *({"role": "tool", "tool_call_id": name, "content": "d"} for name in "cd"),
        {"role": "system", "content": "e"},
    ],
}
"""A conversation that chat templates take only when it has been arranged."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a body took. Times are processor seconds, but for `waited`."""

    status: int
    """Of the answer; 0: there was none."""
    said: str
    """The beginning of an answer that is none of success."""
    turn: Turn
    """The longest turn."""
    loop: float
    """Of all turns together."""
    process: float
    """Of all threads."""
    waited: float
    """Seconds until the answer was there."""
    grown: int
    """Bytes that the gateway's memory had more at most than before."""
    sent: int
    """Bytes of the body."""
    received: int
    """Bytes of the answer."""

    @property
    def answered(self) -> bool:
        """Whether it was answered, or refused in a way that says why."""
        return 200 <= self.status < 300 or 400 <= self.status < 500


class MeteredGateway:
    """The gateway of one engine core. Use as a context manager."""

    def __init__(self, folder: Path, model: str) -> None:
        self._folder, self._model = folder, model
        self.log = folder / f"{model}.log"
        self.model = model
        self._data = folder / f"{model}.data"
        self._asking = concurrent.futures.ThreadPoolExecutor(1)

    def __enter__(self) -> MeteredGateway:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        self._data.mkdir(exist_ok=True)
        endpoint = f"ipc://{self._folder}/{self._model}"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*PYTHON, "testing.costs.metered_gateway", endpoint, str(self._data)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.port = int(self._line())
        self.wait_ready()
        # What the first conversation waits for in a thread is known to the ones after it.
        first = msgspec.json.encode(ARRANGED)
        self._posted("/v1/chat/completions", first, "application/json")
        self.take()

    def wait_ready(self) -> None:
        """Until it has a session with its engine core."""
        url = f"http://127.0.0.1:{self.port}/health/ready"
        wait(lambda: answers(url), self.process, self.log, pause=0.02)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def take(self) -> Report:
        """What the loop did since the last call."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return msgspec.json.decode(self._line(), type=Report)

    def _line(self) -> bytes:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the gateway has left:\n{self.log.read_text()[-4000:]}")
        return line

    def loop_seconds(self) -> float:
        """Processor time of the loop's thread so far, also of one that stands still."""
        task = f"/proc/{self.process.pid}/task/{self.process.pid}/schedstat"
        return int(Path(task).read_text().split()[0]) / 1e9

    def cost(
        self,
        path: str,
        body: bytes,
        content_type: str = "application/json",
        patience: float = PATIENCE,
    ) -> Cost:
        """Sends a body, reads the answer to its end, and returns what it took. A gateway that
        doesn't answer in time is ended, and another started."""
        before = self.take()
        begun = time.monotonic()
        asked = self._asking.submit(self._posted, path, body, content_type)
        if self._settled(asked, patience):
            status, said, received = asked.result()
            waited = time.monotonic() - begun
            self._posted("/health/live", b"", "", method="GET")
            report = self.take()
        else:
            status, said, received = 0, "given up", 0
            waited, report = time.monotonic() - begun, self.take()
            self.end()
            concurrent.futures.wait([asked])
            self.start()
        return Cost(
            status=status, said="" if 200 <= status < 300 else said, turn=report.worst,
            loop=max(report.seconds, report.worst.seconds), process=report.all_seconds,
            waited=waited, grown=report.most_resident - before.resident, sent=len(body),
            received=received,
        )  # fmt: skip

    def _settled(self, asked: concurrent.futures.Future[Posted], patience: float) -> bool:
        """Whether there is an answer before it is given up."""
        spent, deadline = self.loop_seconds() + patience, time.monotonic() + LONGEST
        while not concurrent.futures.wait([asked], LOOK_EVERY).done:
            if self.loop_seconds() > spent or time.monotonic() > deadline:
                return False
        return True

    def _posted(self, path: str, body: bytes, content_type: str, method: str = "POST") -> Posted:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST)
        headers = {"content-type": content_type} if content_type else {}
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body or None, headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # It was refused before it had come.
            try:
                response = connection.getresponse()
                first = part = response.read1(65_536)
                received = len(first)
                while part:
                    part = response.read1(1 << 20)
                    received += len(part)
            except (OSError, http.client.HTTPException) as error:
                return 0, type(error).__name__, 0
            return response.status, first[:300].decode(errors="replace"), received


class Scene:
    """Engine cores for all models, and gateways that are started when they are asked for. Use as a
    context manager."""

    def __init__(self, names: tuple[str, ...] = tuple(MODELS)) -> None:
        self._names = names
        self._gateways: dict[str, MeteredGateway] = {}
        self._answer = Answer()

    def __enter__(self) -> Scene:
        self.folder = Path(tempfile.mkdtemp(prefix="pst-"))
        self._core = subprocess.Popen(
            [*PYTHON, "testing.costs.answering_core", str(self.folder), *self._names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._heard("ready")
        return self

    def __exit__(self, *_: object) -> None:
        for gateway in self._gateways.values():
            gateway.end()
        self._core.kill()
        self._core.wait()
        for pipe in (self._core.stdin, self._core.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _heard(self, word: str) -> None:
        assert self._core.stdout is not None
        line = self._core.stdout.readline().decode().strip()
        if line != word:
            raise RuntimeError(f"the engine cores said {line!r}, not {word!r}")

    def gateway(self, model: str) -> MeteredGateway:
        found = self._gateways.get(model)
        if found is None:
            found = self._gateways[model] = MeteredGateway(self.folder, model)
            found.start()
        return found

    def answer(self, answer: Answer) -> None:
        """Engine cores say this from now on."""
        if answer != self._answer:
            assert self._core.stdin is not None
            self._core.stdin.write(msgspec.json.encode(answer) + b"\n")
            self._core.stdin.flush()
            self._heard("set")
            self._answer = answer


@contextlib.contextmanager
def gateway_of(model: str, **_: Any) -> Iterator[MeteredGateway]:
    """One metered gateway with its engine core."""
    with Scene((model,)) as scene:
        yield scene.gateway(model)
