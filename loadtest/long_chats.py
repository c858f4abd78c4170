"""How long does an agent wait for the first token of its first turn, and of its tenth? Penstock and
llama.cpp's server in turns, each with the prefix of its own conversation cached:
`python -m loadtest.long_chats`."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from deploy.local import answers, free_port, running
from loadtest.peers.servers import Server, make_server
from loadtest.report import Document, Flags, Measurement, SetupError, machine_line, say, table
from testing.words import WORDS

CONTEXT = "16384"
PATIENCE = 600.0
"""Seconds for the first token of a first turn."""


def measure(flags: Flags) -> Document:
    """A conversation's first message has `first` words, each later one `later`: results of tools.
    An answer has 32 tokens at most, and becomes a part of the conversation as it is. A word is a
    token, more or less; each conversation begins with words of its own."""
    file = Path(flags.model)
    if not file.is_file():
        raise SetupError(f"{file} is no file: --model names a GGUF file")
    rows = []
    for number in range(flags.rounds):
        for name in ("penstock", "llamacpp"):
            rows += _conversation(make_server(name, file), number, flags)
    return {"model": file.stem, "rounds": flags.rounds, "first": flags.first, "rows": rows}


def _conversation(server: Server, number: int, flags: Flags) -> list[Document]:
    """Returns a row for each turn of one conversation with a server of its own."""
    draw = random.Random(number)
    command, rows = _command(server), []
    url = f"http://127.0.0.1:{(port := free_port())}"
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with running([*command, "--port", str(port)], log) as process:
            while not answers(f"{url}{server.ready_path}"):
                if process.poll() is not None:
                    raise SetupError(log.read_text(errors="replace")[-500:])
                time.sleep(0.1)
            with httpx.Client(base_url=url, timeout=PATIENCE) as client:
                model = client.get("/v1/models").json()["data"][0]["id"]
                messages: list[dict[str, str]] = []
                for turn in range(1, flags.turns + 1):
                    words = draw.choices(WORDS, k=flags.first if turn == 1 else flags.later)
                    messages.append({"role": "user", "content": "".join(words).strip()})
                    seconds, answer = _answer(client, model, messages)
                    messages.append({"role": "assistant", "content": answer})
                    row = {"system": server.name, "round": number, "turn": turn, "first_s": seconds}
                    say(f"{server.name}, turn {turn}: first token after {seconds:.2f} s")
                    rows.append(row)
    return rows


def _command(server: Server) -> list[str]:
    """The server's, with room for long prompts."""
    command = list(server.command)
    if "--n_ctx" in command:
        command[command.index("--n_ctx") + 1] = CONTEXT
        return command
    return [*command, "--max-model-len", CONTEXT]


def _answer(client: httpx.Client, model: str, messages: list[dict[str, str]]) -> tuple[float, str]:
    """Returns seconds until the first token has come, and the whole answer."""
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 32}
    begun, first, pieces = time.monotonic(), 0.0, []
    with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            piece = _content(line)
            if piece:
                first = first or time.monotonic() - begun
                pieces.append(piece)
    if not pieces:
        raise SetupError(f"no token came; the status is {answer.status_code}")
    return first, "".join(pieces)


def _content(line: str) -> str:
    """The text in a line of the stream; empty if there is none."""
    if not line.startswith("data: {"):
        return ""
    choices: list[dict[str, Any]] = json.loads(line.removeprefix("data: ")).get("choices", [])
    return (choices[0].get("delta", {}).get("content") or "") if choices else ""


def markdown(document: Document) -> str:
    """A line for each turn: medians of the rounds, and their ratio."""
    lines = []
    for turn in dict.fromkeys(row["turn"] for row in document["rows"]):
        ours, theirs = (
            median(
                row["first_s"]
                for row in document["rows"]
                if row["turn"] == turn and row["system"] == system
            )
            for system in ("penstock", "llamacpp")
        )
        lines.append({"turn": turn, "ours": ours, "theirs": theirs, "ratio": theirs / ours})
    columns = {
        "turn": "{turn}",
        "Penstock, s": "{ours:.2f}",
        "llama.cpp, s": "{theirs:.2f}",
        "llama.cpp's / ours": "{ratio:.2f}",
    }
    return (
        f"{machine_line(document)}\n\n{document['model']}: seconds until the first token of each "
        f"turn, medians of {document['rounds']} conversations with each server, in turns; one "
        f"stream. The first message has {document['first']:,} words.\n\n{table(columns, lines)}\n"
    )


COMMAND = Measurement(
    "long_chats",
    __doc__,
    measure,
    markdown,
    {
        "--model": {"required": True, "help": "a GGUF file"},
        "--rounds": (2, "conversations with each server"),
        "--turns": (10, "of each conversation"),
        "--first": (8000, "words of a conversation's first message"),
        "--later": (300, "words of each later message"),
    },
    head="# How long does an agent wait for its turns?\n\n"
    "`python -m loadtest.long_chats` says it of this machine.",
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
