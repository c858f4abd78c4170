"""What other programs gain by looking drafts up in the prompt: llama.cpp's Python package, and
transformers. One stream, greedy, the default model, requests as `loadtest.speculation` has them.

    python -m loadtest.speculation_peers --llamacpp PYTHON_OF_AN_ENVIRONMENT_WITH_LLAMA_CPP
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from typing import Any

from loadtest.drafting import in_process
from loadtest.drafting.requests import WORKLOADS
from loadtest.peers.servers import default_model
from loadtest.report.facts import machine_line
from loadtest.report.files import Document, Measurement, SetupError, say
from loadtest.report.table import table
from loadtest.speculation import ratios

KINDS = ("copy", "code", "chat")
COLUMNS = {
    "program": "{program}",
    "looked up at most": "{most}",
    "requests": "{name}",
    "tok/s without": "{without:.0f}",
    "tok/s with": "{with_drafts:.0f}",
    "ratio": "{ratio:.2f} ± {error:.2f}",
}


def measure(flags: argparse.Namespace) -> Document:
    programs = {"llama_cpp": flags.llamacpp, "transformers": sys.executable}
    rows = [
        _row(program, python, most, name, flags)
        for program, python in programs.items()
        if python and program in flags.programs.split(",")
        for most in flags.most
        for name in KINDS
    ]
    return {"rows": rows}


def _row(
    program: str, python: str, most: int, name: str, flags: argparse.Namespace
) -> dict[str, Any]:
    say(f"{program}, {name}, {most} tokens")
    make = WORKLOADS[name]
    chats = [make(random.Random(f"{name} {at}"))["messages"] for at in range(flags.requests + 1)]
    command = [python, in_process.__file__, program, str(default_model()), str(flags.tokens)]
    done = subprocess.run(
        [*command, str(most)], input=json.dumps(chats), capture_output=True, text=True
    )
    if done.returncode:
        raise SetupError(f"{program} failed: {done.stderr.strip()[-500:]}")
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    without = [tokens / seconds for (tokens, seconds), _ in found]
    with_drafts = [tokens / seconds for _, (tokens, seconds) in found]
    ratio, error = ratios(with_drafts, without)
    return {
        "program": program,
        "most": most,
        "name": name,
        "without": sum(without) / len(without),
        "with_drafts": sum(with_drafts) / len(with_drafts),
        "ratio": ratio,
        "error": error,
    }


def markdown(document: Document) -> str:
    return (
        f"{machine_line(document)}\n\nOne stream, greedy; a prompt's time is in it. llama.cpp"
        " computes the quantised weights, transformers the same ones in bfloat16.\n\n"
        f"{table(COLUMNS, document['rows'])}\n"
    )


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


OPTIONS = {
    "--llamacpp": {"default": "", "help": "a Python with llama_cpp; empty: left out"},
    "--programs": {"default": "llama_cpp,transformers", "help": "with commas"},
    "--most": {"type": _numbers, "default": [2, 10], "help": "tokens that are looked up"},
    "--requests": {"type": int, "default": 4, "help": "of each kind"},
    "--tokens": {"type": int, "default": 128, "help": "of an answer, at most"},
}
COMMAND = Measurement("speculation_peers", __doc__, measure, markdown, OPTIONS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
