"""A disk that fills up under a running system: the log's, that of stored KV, and that of the
runtime folder."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from deploy.local import free_port
from testing.descendants import descendants
from testing.processes import PENSTOCK
from testing.serving import PATIENCE, wait_until
from testing.trained.seeing import FOLDER
from testing.trained.seeing.exam import Task, whole
from tests.system.test_seeing import asked

pytestmark = [pytest.mark.timeout(300)]

PROMPTS = [[3 + (7 * n + n * at) % 200 for at in range(100)] for n in range(1, 5)]
SIZE = 2 * 2**20


class SmallDisk:
    """A system whose log, stored KV and runtime folder, with pictures on their way to workers, lie
    on a disk of SIZE bytes, which nobody else sees. folder: of the disk, as seen from outside."""

    def __init__(self, place: Path, *flags: str) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        mount = f"mount -t tmpfs -o size={SIZE} none {place}"
        serve = [*PENSTOCK, "serve", "--port", str(port), *flags]
        script = f'{mount} && mkdir -m 700 {place}/run && exec "$@" >{place}/log 2>&1'
        self.process = subprocess.Popen(
            ["unshare", "-m", "bash", "-c", script, "bash", *serve],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "XDG_RUNTIME_DIR": f"{place}/run"},
        )
        self.folder = Path(f"/proc/{self.process.pid}/root{place}")

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None
            try:
                return httpx.get(f"{self.url}/health/ready", timeout=PATIENCE).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready)

    def fill(self) -> None:
        """Leaves no room."""
        with (self.folder / "fill").open("ab", buffering=0) as file:
            for size in (4096, 1):
                while True:
                    try:
                        file.write(bytes(size))
                    except OSError:
                        break

    def answers(self) -> list[str]:
        found = []
        for prompt in PROMPTS:
            body = {"prompt": prompt, "max_tokens": 12, "temperature": 0.8, "seed": 5}
            reply = httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE)
            assert reply.status_code == 200, reply.text
            found.append(reply.json()["choices"][0]["text"])
        return found

    def kill(self, title: str) -> None:
        """Until another process is there."""

        def pid() -> int | None:
            named = descendants(f"penstock: {title}")
            own = (each for each in named if self.process.pid in map(_pid, each.parents()))
            return next(map(_pid, own), None)

        victim = pid()
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: pid() not in (None, victim))

    def says(self, task: Task) -> str:
        """What a model that sees answers."""
        body = {"messages": [{"role": "user", "content": asked(task)}], "temperature": 0}
        reply = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["message"]["content"]
        return text

    def blocks(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("kv/*/*.kv"))


def _pid(process: psutil.Process) -> int:
    return process.pid


@pytest.fixture
def start(tiny_model: str) -> Iterator[Callable[..., SmallDisk]]:
    started: list[SmallDisk] = []
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("only root can mount a small disk, in a namespace of its own")
    with tempfile.TemporaryDirectory(prefix="pst-") as place:

        def start(*flags: str, model: str = tiny_model) -> SmallDisk:
            kept = ("--disk-kv-dir", f"{place}/kv", "--disk-kv-gib", "0.01")
            server = SmallDisk(Path(place), model, *kept, *flags)
            started.append(server)
            return server

        yield start
        for server in started:
            if server.process.poll() is None:
                server.process.kill()
            server.process.wait()


def test_a_disk_that_fills_up_ends_nothing(start: Callable[..., SmallDisk]) -> None:
    """Neither while it serves, nor when a process dies and comes back, nor at the end."""
    server = start("--num-kv-blocks", "8")  # One prompt's: each makes room for the next one.
    server.wait_ready()
    undisturbed = server.answers()
    wait_until(lambda: server.blocks() > 0)
    for path in server.folder.glob("kv/*/*.kv"):
        path.unlink()
    server.fill()
    assert server.answers() == undisturbed
    for title in ("worker 0", "engine", "gateway 0"):
        server.kill(title)
        server.wait_ready()
    assert server.answers() == undisturbed
    (server.folder / "fill").unlink()
    assert server.answers() == undisturbed
    server.fill()
    server.process.terminate()
    assert server.process.wait(PATIENCE) == 0


def test_pictures_find_their_way_without_files(start: Callable[..., SmallDisk]) -> None:
    """They are sent in messages where no file can be written for them."""
    server = start("--num-kv-blocks", "128", model=str(FOLDER))
    server.wait_ready()
    tasks = whole(40)[::8]
    undisturbed = [server.says(task) for task in tasks]
    server.fill()
    server.kill("worker 0")  # Its successor has seen none.
    server.wait_ready()
    assert [server.says(task) for task in tasks] == undisturbed
