"""How long it takes until the first token comes through the load balancer."""

from __future__ import annotations

import http.client
import json
import time
from urllib.parse import urlsplit

from deploy.compose.docker import Failed

TIMEOUT = 30.0
PROMPT = "What is the capital of France?"


class KeyNeeded(Exception):
    """Only who has an API key may ask, and none is known here."""


def wait_first_token(url: str, seconds: float) -> str:
    """Asks again and again until an answer comes; returns its first piece of text.

    Raises KeyNeeded, and Failed, with what was answered last, when the time is over.
    """
    until, last = time.monotonic() + seconds, "nothing"
    while time.monotonic() < until:
        try:
            return _first_piece(url)
        except (OSError, http.client.HTTPException, ValueError) as error:
            last = f"{type(error).__name__}: {error}"
            time.sleep(0.1)
    raise Failed(f"no token from {url} within {seconds:g} s; the last answer: {last}")


def ask(url: str, prompt: str = PROMPT, **fields: object) -> str:
    """The whole text of a greedy chat answer. Raises OSError, HTTPException or ValueError."""
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, **fields}
    with _post(url, body) as answer:
        said = json.loads(answer.read())
        if answer.status != 200:
            raise ValueError(f"{answer.status} {said}")
    return str(said["choices"][0]["message"]["content"])


def _first_piece(url: str) -> str:
    body = {"messages": [{"role": "user", "content": PROMPT}], "stream": True, "max_tokens": 8}
    with _post(url, body) as answer:
        if answer.status == 401:
            raise KeyNeeded
        if answer.status != 200:
            raise ValueError(f"{answer.status} {answer.read(300)!r}")
        while line := answer.readline():
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:]).get("choices") or [{}]
                if text := choices[0].get("delta", {}).get("content"):
                    return str(text)
    raise ValueError("the stream ended without a token")


def _post(url: str, body: dict[str, object]) -> http.client.HTTPResponse:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT)
    headers = {"content-type": "application/json", "connection": "close"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    return connection.getresponse()
