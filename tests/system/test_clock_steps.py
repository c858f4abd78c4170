"""The clock of a whole system is set back and forth: answers, batches, background responses
and adapters go on as if nothing had happened."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from testing.serving import PATIENCE, Server, wait_until
from tests.system.test_adapters import write_adapter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

HOUR = 3600
STEPS = (-HOUR, HOUR, -12 * HOUR, 90, 0)
"""Seconds that the clock is ahead, one after the other: never by a batch's day at once."""
TEMPLATE = "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}assistant:"
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *ahead;
static int (*true_clock)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
  int file = open(getenv("CLOCK_AHEAD"), O_RDONLY | O_CLOEXEC);
  void *mapped = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) ahead = mapped;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!true_clock) true_clock = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = true_clock(clock, now);
  if (!failed && ahead && clock == CLOCK_REALTIME) now->tv_sec += *ahead;
  return failed;
}
time_t time(time_t *seconds) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds) *seconds = now.tv_sec;
  return now.tv_sec;
}
int gettimeofday(struct timeval *time, void *zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}
"""
"""A library that is loaded before the C library, and whose clock is ahead by the seconds in a
file."""


@pytest.fixture
def set_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executed: None
) -> Callable[[int], None]:
    """Sets the clock of processes that are started from now on. They are executed: a forked one has
    its C library already."""
    if shutil.which("cc") is None:
        pytest.skip("the clock's library wants a C compiler")
    (source := tmp_path / "clock.c").write_text(CLOCK)
    library, ahead = tmp_path / "clock.so", tmp_path / "ahead"
    ahead.write_bytes(struct.pack("l", 0))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("CLOCK_AHEAD", str(ahead))

    def set_clock(seconds: int) -> None:
        with ahead.open("r+b") as file:
            file.write(struct.pack("l", seconds))

    return set_clock


class Client:
    """A client of a server whose clock is set."""

    def __init__(self, server: Server) -> None:
        self._http = httpx.Client(base_url=server.url, timeout=2 * PATIENCE)

    def ask(self, method: str, path: str, **more: Any) -> Any:
        answer = self._http.request(method, path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json() if answer.headers["content-type"] == "application/json" else None

    def says(self, model: str, tokens: int, ahead: int) -> str:
        """What the model says, by a clock that is so many seconds ahead."""
        body = {"model": model, "prompt": "abc", "max_tokens": tokens, "ignore_eos": True}
        found = self.ask("POST", "/v1/completions", json={**body, "temperature": 0})
        assert abs(found["created"] - time.time() - ahead) < PATIENCE
        text: str = found["choices"][0]["text"]
        return text

    def begin_batch(self, model: str) -> str:
        body = {"model": model, "prompt": "abc", "max_tokens": 20, "ignore_eos": True}
        lines = [
            {"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body}
            for n in range(20)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        files = {"file": ("requests.jsonl", content)}
        file = self.ask("POST", "/v1/files", files=files, data={"purpose": "batch"})
        asked = {"endpoint": "/v1/completions", "completion_window": "24h"}
        batch = self.ask("POST", "/v1/batches", json={**asked, "input_file_id": file["id"]})
        return f"/v1/batches/{batch['id']}"

    def begin_response(self, model: str) -> str:
        body = {"model": model, "input": "abc", "max_output_tokens": 30, "background": True}
        return f"/v1/responses/{self.ask('POST', '/v1/responses', json=body)['id']}"

    def ended(self, path: str, *statuses: str) -> None:
        found: dict[str, Any] = {}

        def over() -> bool:
            found.update(self.ask("GET", path))
            return found["status"] in statuses

        wait_until(over, message=lambda: str(found))


def test_nothing_waits_or_is_lost(
    set_clock: Callable[[int], None],
    start_server: Callable[..., Server],
    tiny_model: str,
    tmp_path: Path,
) -> None:
    for seed, name in enumerate(("a", "b")):
        write_adapter(tmp_path / f"{name}.gguf", seed)
    (template := tmp_path / "template.jinja").write_text(TEMPLATE)
    server = start_server(
        tiny_model, "--data-dir", str(tmp_path / "data"), "--stored-response-hours", "24",
        "--chat-template", str(template), "--enable-lora",
        "--lora-allowed-folder", str(tmp_path), "--cache-dir", str(tmp_path / "cache"),
    )  # fmt: skip
    client = Client(server)

    def load(name: str) -> None:
        body = {"lora_name": "adapter", "lora_path": f"{name}.gguf", "load_inplace": True}
        client.ask("POST", "/v1/load_lora_adapter", json=body)

    undisturbed, contents = client.says(server.model, 100, 0), {}
    for name in ("a", "b"):
        load(name)
        contents[name] = client.says("adapter", 20, 0)
    assert contents["a"] != contents["b"]
    kept = client.begin_response(server.model)
    client.ended(kept, "completed", "incomplete")
    processes = server.processes()
    for number, seconds in enumerate(STEPS):
        batch, response = client.begin_batch(server.model), client.begin_response(server.model)
        set_clock(seconds)
        assert client.says(server.model, 100, seconds) == undisturbed
        client.ended(batch, "completed")
        later = client.begin_batch(server.model), client.begin_response(server.model)
        for path in (response, *later, kept):
            client.ended(path, "completed", "incomplete")
        load(name := "ab"[number % 2])
        assert client.says("adapter", 20, seconds) == contents[name]
    assert server.processes() == processes
    assert "session ended" not in server.stderr
