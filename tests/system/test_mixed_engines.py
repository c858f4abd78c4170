"""Engine cores with processors of two kinds behind the same gateways: every answer is that of one
kind, whatever dies, or ends in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.prepare import prepare
from testing import processes
from testing.processes import MODEL, PENSTOCK, RestartableProcess
from testing.serving import PATIENCE, wait_until
from tests.shallow_model import shallow_model
from tests.system.test_resumed_streams import BODIES, COMPLETIONS, RESUMABLE, Event, computed

pytestmark = [pytest.mark.timeout(900)]

ISA = "PENSTOCK_CPU_ISA"
COMMON, RARE = "avx2", "avx512"
FLAGS = (
    *("--max-model-len", "1024", "--num-kv-blocks", "256", "--speculative-config", "off"),
    *("--threads", "1"),
)
"""Workers of several engine cores share the machine: two threads of each wait for one another."""
STREAMS = 2 * len(BODIES)
BEAMS = {"prompt": "The river", "use_beam_search": True, "n": 4, "max_tokens": 24, "logprobs": 1}
SEVERAL = {**BEAMS, "prompt": ["The river", "A weir"], "use_beam_search": False, "seed": 3}
DRAWN = {**SEVERAL, "seed": None}


class Core:
    """An engine core and its worker, whose processor counts as one with the instruction set."""

    def __init__(self, parent: Path, name: str, isa: str) -> None:
        self.folder = parent / name
        self.folder.mkdir()
        self.endpoint = processes.front_end(self.folder)
        self._model = prepare(shallow_model())
        self.engine = processes.engine(self.folder, self._model, FLAGS)
        self.worker = self._worker(isa)

    def _worker(self, isa: str) -> RestartableProcess:
        command = [*PENSTOCK, "worker", "--engine-endpoint", processes.back(self.folder)]
        return RestartableProcess(command, self.folder / "worker.log", {ISA: isa})

    def moved_to(self, isa: str) -> None:
        """The worker dies, and another machine's takes its place."""
        self.worker.kill()
        self.worker = self._worker(isa)

    def close(self) -> None:
        for process in (self.worker, self.engine):
            process.__exit__()


class Mixed:
    """Two engine cores of one kind and one of another. first, second: gateways of all of them.
    alone: a gateway for the first of each kind, by instruction set.  undisturbed: what was asked
    alone, by instruction set and what was asked."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.cores = [
            Core(folder, name, isa) for name, isa in (("a", COMMON), ("b", COMMON), ("c", RARE))
        ]
        for core in self.cores:
            stack.callback(core.close)

        def gateway(*cores: Core) -> str:
            dialled = ",".join(core.endpoint for core in cores)
            started = processes.gateway(dialled, log=folder / "gateways.log")
            return stack.enter_context(started).url

        a, _, c = self.cores
        self.first, self.second = gateway(*self.cores), gateway(*self.cores)
        self.alone = {COMMON: gateway(a), RARE: gateway(c)}
        wait_until(lambda: len(self.told()) == 3, 2 * PATIENCE, self.told)
        self.names = {isa: name_of(url) for isa, url in self.alone.items()}
        self.undisturbed: dict[tuple[str, str], dict[str, Any]] = {}

    def engines(self) -> list[dict[str, Any]]:
        state: dict[str, Any] = httpx.get(f"{self.first}/status", timeout=PATIENCE).json()
        found: list[dict[str, Any]] = state["engines"]
        return found

    def told(self) -> list[str]:
        """What the engine cores that are ready compute with, for both gateways."""
        states = [httpx.get(f"{url}/status").json() for url in (self.first, self.second)]
        both = [[e["fingerprint"] for e in each["engines"] if e["ready"]] for each in states]
        return both[0] if both[0] == both[1] else []

    def kind_of(self, name: str) -> str:
        return next(isa for isa, each in self.names.items() if each == name)


def name_of(url: str) -> str:
    body = {"prompt": "a", "max_tokens": 1}
    return str(post(url, COMPLETIONS, body)["system_fingerprint"])


@pytest.fixture
def mixed() -> Iterator[Mixed]:
    for isa in (COMMON, RARE):
        found = subprocess.run(
            [sys.executable, "-c", "from penstock_kernels.cpu import library; library.load()"],
            env={**os.environ, ISA: isa},
            capture_output=True,
            text=True,
        )
        if found.returncode:
            pytest.skip(f"two kinds of arithmetic: {found.stderr.splitlines()[-1]}")
    # Short: the sockets' paths must fit into a Unix socket's address.
    with tempfile.TemporaryDirectory(prefix="pst-") as folder, ExitStack() as stack:
        yield Mixed(Path(folder), stack)


def post(url: str, path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    reply = httpx.post(url + path, json=body, headers=headers, timeout=4 * PATIENCE)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


class Stream:
    """One that is read in a thread. error: of its last event."""

    def __init__(self, url: str, path: str, body: dict[str, Any]) -> None:
        self.path, self.body = path, {"model": MODEL, **body, **RESUMABLE}
        self._url = url
        self.events: list[Event] = []
        self.error: dict[str, Any] | None = None
        self.over = False

    def read(self, last: str | None = None) -> Stream:
        headers = {} if last is None else {"Last-Event-ID": last}
        with httpx.stream(
            "POST", self._url + self.path, json=self.body, headers=headers, timeout=4 * PATIENCE
        ) as reply:
            if reply.status_code != 200:
                self.error = json.loads(reply.read())["error"]
                return self
            id: str | None = None
            for line in reply.iter_lines():
                if line.startswith("id: "):
                    id = line.removeprefix("id: ")
                elif line == "data: [DONE]":
                    self.over = self.error is None
                elif line.startswith("data: "):
                    data = line.removeprefix("data: ")
                    if self._take(data):
                        self.events.append(Event(id, data))
                    id = None
        return self

    def _take(self, data: str) -> bool:
        self.error = json.loads(data).get("error")
        return self.error is None

    @property
    def fingerprint(self) -> str:
        return str(json.loads(self.events[0].data)["system_fingerprint"])

    @property
    def last(self) -> str:
        return next(event.id for event in reversed(self.events) if event.id is not None)


def streams(*urls: str) -> list[Stream]:
    """All kinds of bodies, each of its own length and seed, from each gateway in turn. Each begins
    with its number: equal ones would go to one engine core as long as that has room."""
    made = []
    for number in range(STREAMS):
        url = urls[number % len(urls)]
        path, body = list(BODIES.values())[number % len(BODIES)]
        more = {"max_tokens": 120} if "ignore_eos" in body else {}
        made.append(Stream(url, path, {"seed": number, **numbered(body, number), **more}))
    return made


def numbered(body: dict[str, Any], number: int) -> dict[str, Any]:
    if "messages" in body:
        system = {"role": "system", "content": f"{number}"}
        return {**body, "messages": [system, *body["messages"]]}
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return {**body, "prompt": f"{number} {prompt}"}
    return {**body, "prompt": [f"{number} {each}" for each in prompt]}


def disturbed(mixed: Mixed, strike: Callable[[], None], *more: str) -> list[Stream]:
    """What became of streams under which something was struck, when all had begun. more: gateways
    that they come from, beside the first one."""
    reading = streams(mixed.first, *more)
    with ThreadPoolExecutor(STREAMS) as pool:
        tasks = [pool.submit(each.read) for each in reading]
        wait_until(lambda: all(s.events or s.error for s in reading), 2 * PATIENCE)
        assert not all(each.over for each in reading)
        strike()
        return [task.result(4 * PATIENCE) for task in tasks]


def undisturbed(mixed: Mixed, stream: Stream) -> dict[str, Any]:
    """What the engine core says to it that computes alike, asked alone; of each body once."""
    kind = mixed.kind_of(stream.fingerprint)
    asked = kind, json.dumps([stream.path, stream.body])
    if asked not in mixed.undisturbed:
        events = Stream(mixed.alone[kind], stream.path, stream.body).read().events
        mixed.undisturbed[asked] = computed(events)
    return mixed.undisturbed[asked]


def check_whole(mixed: Mixed, stream: Stream) -> None:
    assert stream.over, stream.error
    assert computed(stream.events) == undisturbed(mixed, stream)


def test_each_answer_is_computed_by_one_kind_or_ends_in_words(mixed: Mixed) -> None:
    """One system for all of it, which takes half a minute to start."""
    assert len(set(mixed.told())) == 2
    check_kinds_differ(mixed)
    check_parts(mixed)
    check_keys(mixed)
    check_streams_go_on(mixed)
    check_another_machine(mixed)
    check_none_is_left(mixed)


def check_kinds_differ(mixed: Mixed) -> None:
    """Else nothing here could fail."""
    said = [json.dumps(post(url, COMPLETIONS, SEVERAL)["choices"]) for url in mixed.alone.values()]
    assert said[0] != said[1]


def check_parts(mixed: Mixed) -> None:
    """Several prompts, beams and best_of are searched with what answers the first prompt."""
    bodies = [
        numbered({**body, "prompt": SEVERAL["prompt"]}, number)
        for number in range(6)
        for body in (SEVERAL, BEAMS, {**SEVERAL, "best_of": 8})
    ]
    with ThreadPoolExecutor(len(bodies)) as pool:
        said = list(pool.map(lambda body: post(mixed.first, COMPLETIONS, body), bodies))
    kinds = [mixed.kind_of(each["system_fingerprint"]) for each in said]
    assert set(kinds) == {COMMON, RARE}, "each takes some"
    for body, kind, answer in zip(bodies, kinds, said, strict=True):
        assert post(mixed.alone[kind], COMPLETIONS, body)["choices"] == answer["choices"]


def check_keys(mixed: Mixed) -> None:
    """A key leads to the same kind from every gateway, and others to the other one."""
    kinds: list[str] = []
    while len(kinds) < 6 or len(set(kinds)) < 2:
        number = len(kinds)
        assert number < 40, "as many heads in a row"
        answers = [
            post(url, COMPLETIONS, DRAWN, **{"Idempotency-Key": f"{number}"})
            for url in (mixed.first, mixed.second)
        ]
        assert answers[0]["id"] == answers[1]["id"]
        assert answers[0]["choices"] == answers[1]["choices"]
        assert answers[0]["system_fingerprint"] == answers[1]["system_fingerprint"]
        kinds.append(mixed.kind_of(answers[0]["system_fingerprint"]))


def check_streams_go_on(mixed: Mixed) -> None:
    """An engine core dies for good, then the worker of one."""
    a, b, c = mixed.cores
    for kill, again in (
        (a.engine.kill, a.engine.start),
        (b.worker.kill, b.worker.start),
        (c.engine.kill, c.engine.start),
    ):

        def strike(kill: Callable[[], None] = kill, again: Callable[[], None] = again) -> None:
            kill()
            again()

        found = disturbed(mixed, strike)
        wait_until(lambda: len(mixed.told()) == 3, 2 * PATIENCE, mixed.engines)
        assert {mixed.kind_of(each.fingerprint) for each in found} == {COMMON, RARE}
        for stream in found:
            check_whole(mixed, stream)


def check_another_machine(mixed: Mixed) -> None:
    """What an engine core had begun whose worker comes back on a machine of another kind."""
    b = mixed.cores[1]
    found = disturbed(mixed, lambda: b.moved_to(RARE))
    wait_until(lambda: len(mixed.told()) == 3, 2 * PATIENCE, mixed.engines)
    for stream in found:
        check_whole(mixed, stream)
    assert sorted(mixed.told()).count(mixed.engines()[1]["fingerprint"]) == 2


def check_none_is_left(mixed: Mixed) -> None:
    """The last of a kind moves, too: its streams end, and go on nowhere."""
    a = mixed.cores[0]
    found = disturbed(mixed, lambda: a.moved_to(RARE), mixed.alone[COMMON])
    wait_until(lambda: len(set(mixed.told())) == 1, 2 * PATIENCE, mixed.engines)
    common = [each for each in found if mixed.kind_of(each.fingerprint) == COMMON]
    cut = [each for each in common if not each.over]
    assert cut, [(each.fingerprint, each.over) for each in found]
    for stream in cut:
        assert stream.error is not None
        assert stream.error["code"] == "model_changed"
        for name in mixed.names.values():
            assert name in stream.error["message"]
        resumed = Stream(mixed.second, stream.path, stream.body).read(stream.last)
        assert resumed.error is not None
        assert (resumed.error["code"], resumed.error["param"]) == ("model_changed", "Last-Event-ID")
        assert not resumed.events
    for stream in found:
        if stream not in common:
            check_whole(mixed, stream)
    key = {"Idempotency-Key": "0"}
    assert post(mixed.second, COMPLETIONS, DRAWN, **key)["system_fingerprint"] == mixed.names[RARE]
