"""Requests of every kind, from several tenants, until told to stop: so that all counts move."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import yaml

from deploy.local import NotThere

ADMIN = "admin-key-for-prometheus"
TENANTS = {"alice": "key-of-alice", "bob": "key-of-bob", "carol": "key-of-carol"}
LIMITED = "key-of-one-with-limits"
SHARED = "The penstock is the pipe that leads water to the turbine. " * 6
PAUSE = 0.05


def key_file(folder: Path) -> Path:
    """API keys of all of them; `limited` may have one request open at a time, and is the only one
    that limits are counted for by the minute."""
    keys: list[dict[str, Any]] = [
        {"name": name, "tenant": name, "sha256": digest(key), "weight": weight}
        for weight, (name, key) in enumerate(TENANTS.items(), 1)
    ]
    keys.append({"name": "prometheus", "sha256": digest(ADMIN), "admin": True})
    limited = {"name": "limited", "tenant": "limited", "sha256": digest(LIMITED)}
    keys.append({**limited, "max_concurrent": 1, "requests_per_minute": 1_000_000})
    path = folder / "keys.yaml"
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(keys))
    return path


def digest(key: str) -> str:
    """The key's digest, as a key file has it."""
    return hashlib.sha256(key.encode()).hexdigest()


def kill_worker(supervisor: int) -> None:
    """With SIGKILL."""
    for child in psutil.Process(supervisor).children(recursive=True):
        if " ".join(child.cmdline()).startswith("penstock: worker"):
            os.kill(child.pid, signal.SIGKILL)


class Traffic:
    """Runs in threads of its own within a `with`. served: streams that came to their ends."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._numbers = itertools.count()
        self.served = 0
        kinds = [self._streams] * 4 + [self._wholes, self._odd, self._too_many, self._leaves]
        self._threads = [threading.Thread(target=self._repeat, args=(kind,)) for kind in kinds]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)

    def wait_served(self, seconds: float) -> None:
        """Until ten more streams have ended. Raises NotThere."""
        wanted, deadline = self.served + 10, time.monotonic() + seconds
        while self.served < wanted:
            if time.monotonic() > deadline:
                raise NotThere(f"{wanted - self.served} streams of 10 did not end in {seconds:g} s")
            time.sleep(0.1)

    def _repeat(self, kind: Any) -> None:
        while not self._stop.is_set():
            try:
                kind(next(self._numbers))
            except OSError:
                pass  # Refused, cut, or left by ourselves: that is counted there.
            time.sleep(PAUSE)

    def _streams(self, number: int) -> None:
        """Prompts of which half begin alike; all together more than the KV cache holds."""
        tenant = list(TENANTS)[number % 3]
        prompt = (SHARED if number % 2 else "") + f"Story number {number}:"
        fields = {"prompt": prompt, "max_tokens": 100, "stream": True, "ignore_eos": True}
        self._post(TENANTS[tenant], fields)
        self.served += 1

    def _wholes(self, number: int) -> None:
        """Chats that end by themselves, or at a stop string."""
        messages = [{"role": "user", "content": f"Say hello to number {number}."}]
        fields = {"messages": messages, "max_tokens": 30, "stop": ["."] if number % 2 else None}
        self._post(TENANTS["alice"], fields, "/v1/chat/completions")

    def _odd(self, number: int) -> None:
        """A field that is none, a model that is none, no key, a path that is none, a deadline."""
        key = TENANTS["bob"]
        for fields in ({"nonsense": 1}, {"model": "none"}):
            self._try(key, {"prompt": "x", **fields})
        self._try("nobody", {"prompt": "x"})
        self._try(key, {"prompt": "x"}, "/v1/nothing")
        self._try(key, {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "deadline_ms": 900})

    def _too_many(self, number: int) -> None:
        """More at once than the tenant may have."""
        fields = {"prompt": f"{number}", "max_tokens": 20}
        both = [threading.Thread(target=self._try, args=(LIMITED, fields)) for _ in range(3)]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()

    def _leaves(self, number: int) -> None:
        """A client that has seen enough after its first piece."""
        fields = {"prompt": f"{number}", "max_tokens": 200, "stream": True, "ignore_eos": True}
        with urllib.request.urlopen(self._request(TENANTS["carol"], fields), timeout=60) as answer:
            answer.readline()

    def _try(self, key: str, fields: dict[str, Any], path: str = "/v1/completions") -> None:
        try:
            self._post(key, fields, path)
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass

    def _post(self, key: str, fields: dict[str, Any], path: str = "/v1/completions") -> None:
        with urllib.request.urlopen(self._request(key, fields, path), timeout=60) as answer:
            answer.read()

    def _request(
        self, key: str, fields: dict[str, Any], path: str = "/v1/completions"
    ) -> urllib.request.Request:
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        return urllib.request.Request(self._url + path, json.dumps(fields).encode(), headers)
