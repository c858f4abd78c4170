"""A real `penstock serve`: started, waited for, stopped, and proved to be gone."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil

from testing.processes import processor_seconds

START_TIMEOUT = 180.0
STOP_TIMEOUT = 60.0
PATIENCE = 60.0
"""Seconds for what another process does in a moment: enough on a machine that is ten times slower,
or that has other work. Tests wait for a state, and bound the wait by this."""


class ServerFailed(Exception):
    """The server left before it was ready. Holds its exit code and what it wrote."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        super().__init__(f"exit code {code}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
        self.code, self.stdout, self.stderr = code, stdout, stderr


TITLE = "penstock: "


class Server:
    """One running system on a free port, with a runtime folder base and log file of its own.

    In a `with` block it is closed at the end.  url, model: as the server printed them when it was
    ready.  log: the file of what it and its processes say.
    """

    unless_said: ClassVar[Mapping[str, str]] = {}
    """Values by flag, for systems whose arguments don't have that flag."""

    def __init__(self, *arguments: str, wait: bool = True, pass_fds: tuple[int, ...] = ()) -> None:
        # Short: the sockets' paths must fit into a Unix socket's address.
        self.folder = Path(tempfile.mkdtemp(prefix="pst-"))
        self.runtime_base = self.folder / "run"
        self.runtime_base.mkdir(mode=0o700)
        self.log = self.folder / "stderr"
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._stdout: list[str] = []
        self.url = self.model = ""
        self._seen: set[int] = set()
        for flag, value in self.unless_said.items():
            if flag not in arguments:
                arguments = (*arguments, flag, value)
        http = () if "--no-http" in arguments else ("--port", "0")
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "serve", *http, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                pass_fds=pass_fds,
                env={**os.environ, "XDG_RUNTIME_DIR": str(self.runtime_base)},
            )
        self._reader = threading.Thread(target=self._read_stdout, daemon=True)
        self._reader.start()
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.close()  # Nobody else can: the caller has no server yet.
                raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def stdout(self) -> str:
        return "".join(self._stdout)

    @property
    def stderr(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _read_stdout(self) -> None:
        for line in self.process.stdout or ():
            self._stdout.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Waits until the ready message is on stdout. Raises ServerFailed if the server leaves
        first."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"not ready in {timeout} s\n{self.stderr}") from None
            if line is None:
                raise ServerFailed(self.process.wait(STOP_TIMEOUT), self.stdout, self.stderr)
            match = re.match(r"Penstock is ready: (\S+) on (https?://\S+)$", line)
            if match:
                self.model, self.url = match.groups()
            if line.strip().startswith("curl "):  # the message's last line
                self.children()
                return

    def try_it(self, **environment: str) -> Any:
        """What the printed line gets, as JSON or as the text of a stream. Raises
        CalledProcessError for a status that is no success."""
        line = self.stdout.splitlines()[-1].strip()
        done = subprocess.run(
            ["bash", "-c", f"exec {line} --silent --show-error --fail"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
        return done.stdout if done.stdout.startswith("data:") else json.loads(done.stdout)

    def children(self) -> dict[str, int]:
        """Title -> pid of the supervisor's living children, e.g. {"penstock: engine": 4711}: those
        that have their title, for a gateway is ready before its renderer of templates is."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if child.status() != psutil.STATUS_ZOMBIE:
                    self._seen.add(child.pid)
                    title = " ".join(child.cmdline()).strip()
                    if title.startswith(TITLE):
                        found[title] = child.pid
            except psutil.NoSuchProcess:
                continue
        return found

    def child(self, title: str) -> int:
        """The pid of `penstock: {title}`."""
        return self.children()[f"{TITLE}{title}"]

    def processes(self) -> dict[str, int]:
        """The pids of the supervisor's own children that live, by what follows TITLE."""
        mine = {child.pid for child in psutil.Process(self.process.pid).children()}
        return {
            title.removeprefix(TITLE): pid
            for title, pid in self.children().items()
            if pid in mine and title.startswith(TITLE)
        }

    def processor_time(self) -> float:
        """Seconds that all processes that live now have computed."""
        return processor_seconds(self.process.pid)

    def get(self, path: str, timeout: float = PATIENCE) -> tuple[int, Any]:
        """Status and JSON body (None if it is none) of a GET."""
        return self._ask(urllib.request.Request(self.url + path), timeout)

    def post(self, path: str, body: Any, timeout: float = 4 * PATIENCE) -> tuple[int, Any]:
        """Status and JSON body of a POST of JSON."""
        headers = {"content-type": "application/json"}
        data = json.dumps(body).encode()
        return self._ask(urllib.request.Request(self.url + path, data, headers), timeout)

    @staticmethod
    def _ask(request: urllib.request.Request, timeout: float) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                status, raw = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, raw = error.code, error.read()
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, None

    def complete(self, prompt: str = "The capital of France is", **fields: Any) -> str:
        """The text of a greedy completion."""
        body = {"model": self.model, "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}
        status, answer = self.post("/v1/completions", body)
        if status != 200:
            raise AssertionError(f"{status}: {answer}")
        return str(answer["choices"][0]["text"])

    def ready(self) -> bool:
        """Whether /health/ready says yes."""
        try:
            return self.get("/health/ready", timeout=5)[0] == 200
        except OSError:
            return False

    def each_gateway(self, says: Callable[[Any], bool]) -> bool:
        """Whether /status says so of all gateways: each connection may reach another one."""
        return all(says(self.get("/status")[1]) for _ in range(8))

    def engine_replaced(self, boot: str) -> bool:
        """Whether all gateways serve requests by another engine core than this one, which was
        killed. New requests don't wait long for one that is slow to come back."""
        return self.each_gateway(
            lambda status: status["ready"] and status["boot"] not in (None, "", boot)
        )

    def stop(self, signum: int = signal.SIGTERM, timeout: float = STOP_TIMEOUT) -> int:
        """Sends the signal and waits; returns the exit code."""
        if self.process.poll() is None:
            self.children()
            self.process.send_signal(signum)
        try:
            return self.process.wait(timeout)
        finally:
            self._reader.join(PATIENCE)

    def close(self) -> None:
        """Stops the server, proves that nothing is left of it, and removes its folder.

        Raises AssertionError with the log when something is; what is left is ended all the same.
        """
        try:
            self.stop()
            self.prove_gone()
        except BaseException as error:
            error.add_note(f"--- the server's log\n{self.stderr[-20_000:]}")
            raise
        finally:
            self._end_by_force()
            shutil.rmtree(self.folder, ignore_errors=True)

    def prove_gone(self, timeout: float = PATIENCE) -> None:
        """No child is alive, no socket or runtime folder is left."""
        wait_until(lambda: not self._living(), timeout, lambda: f"still alive: {self._living()}")
        left = [str(path) for path in self.runtime_base.rglob("*")]
        if left:
            raise AssertionError(f"left in the runtime folder: {left}")

    def _living(self) -> list[str]:
        living = []
        for pid in self._seen:
            try:
                process = psutil.Process(pid)
                title = " ".join(process.cmdline())
                # A title of ours, so that a pid that was given out again isn't taken for a child.
                if process.status() != psutil.STATUS_ZOMBIE and "penstock" in title:
                    living.append(f"{pid} {title}")
            except psutil.NoSuchProcess:
                continue
        return living

    def _end_by_force(self) -> None:
        for entry in self._living():
            try:
                os.kill(int(entry.split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def wait_until(condition: Any, timeout: float = PATIENCE, message: Any = lambda: "") -> None:
    """Polls until `condition()` is true; fails with `message()` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout} s: {message()}")
        time.sleep(0.02)
