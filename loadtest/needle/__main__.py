"""Is a fact found that stands somewhere in a long prompt, as llama.cpp finds it?

    python -m loadtest.needle QWEN2.5-CODER.gguf

A sentence with a number stands after a tenth, a half and nine tenths of texts of several lengths,
and the number is asked for at the end, in Qwen's chat format. Both programs read the same file and
the same tokens, one after the other for each prompt. Needs llama.cpp's environment
(peers/install.sh).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtest.peers.servers import peers_dir
from loadtest.report import (
    ROOT,
    Document,
    Flags,
    Measurement,
    SetupError,
    machine_line,
    markdown_table,
    say,
)
from loadtest.report.table import sections
from penstock import LLM, SamplingParams, TokensPrompt
from penstock_kernels.cpu.library import instruction_set
from penstock_worker.machine.cpu import usable_threads

PLACES = (0.1, 0.5, 0.9)
LENGTHS = (4_000, 16_000, 30_000)
CONTEXT = 32_768
COUNT = 12
"""Tokens of an answer."""
NUMBER = "48271"
NEEDLE = f" The number of the old mill's gate is {NUMBER}. "
QUESTION = "\n\nWhat is the number of the old mill's gate? Answer with the number alone."
BEGINNING = "<|im_start|>user\n"
END = "<|im_end|>\n<|im_start|>assistant\n"
TEXTS = ROOT / "docs"
_HELPER = Path(__file__).with_name("llamacpp.py")


class Peer:
    """llama.cpp in a process of its own."""

    def __init__(self, model: Path, threads: int) -> None:
        python = peers_dir() / "llamacpp" / "bin" / "python"
        if not python.exists():
            raise SetupError(f"{python} is missing: peers/install.sh llamacpp")
        shown = [str(python), "-c", "import llama_cpp; print(llama_cpp.__version__)"]
        self.version = subprocess.run(
            shown, capture_output=True, text=True, check=True
        ).stdout.strip()
        words = [str(python), str(_HELPER), str(model), str(threads), str(CONTEXT), str(COUNT)]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, prompt: list[int]) -> Document:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the process has no pipes")
        stdin.write(json.dumps(prompt) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise SetupError("llama.cpp has ended")
        answer: Document = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def measure(flags: Flags) -> Iterator[Document]:
    """What is known after each prompt."""
    peer = Peer(flags.model.resolve(), flags.threads)
    ran = {
        "isa": instruction_set(),
        "threads": flags.threads,
        "model": flags.model.name,
        "llama_cpp_python": peer.version,
    }
    rows: list[Document] = []
    settings = {"threads": flags.threads, "max_model_len": CONTEXT, "enable_prefix_caching": False}
    try:
        with LLM(model=str(flags.model), **settings) as llm:
            tokenizer = llm.get_tokenizer()
            for length in flags.lengths:
                for place in PLACES:
                    prompt = _prompt(tokenizer, length, place)
                    row: Document = {"tokens": len(prompt), "place": place}
                    row["ours"] = _ours(llm, prompt)
                    row["theirs"] = peer.ask(prompt)
                    for each in (row["ours"], row["theirs"]):
                        each["text"] = tokenizer.decode(each.pop("tokens"))
                    rows.append(row)
                    say(f"needle: {len(prompt)} tokens, at {place:.0%}: {row}")
                    yield {**ran, "rows": list(rows)}
    finally:
        peer.close()


def _prompt(tokenizer: Any, length: int, place: float) -> list[int]:
    """Token ids of a text so long, with the fact after that share of it."""
    encode = tokenizer.encode
    pages = "\n\n".join(page.read_text("utf-8") for page in sorted(TEXTS.rglob("*.md")))
    around = [BEGINNING, NEEDLE, QUESTION + END]
    first, needle, last = (list(encode(each, add_special_tokens=False)) for each in around)
    text = list(encode(pages[: 8 * length], add_special_tokens=False))
    text = text[: length - len(first) - len(needle) - len(last)]
    at = int(place * len(text))
    return [*first, *text[:at], *needle, *text[at:], *last]


def _ours(llm: LLM, prompt: list[int]) -> Document:
    given = TokensPrompt(prompt_token_ids=prompt)
    begun = time.monotonic()
    llm.generate(given, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    first = time.monotonic() - begun
    (answer,) = llm.generate(given, SamplingParams(temperature=0, max_tokens=COUNT), use_tqdm=False)
    return {"tokens": list(answer.outputs[0].token_ids), "first": first}


def markdown(document: Document) -> str:
    line = (
        f"{machine_line(document)}; `{document['isa']}`, {document['threads']} threads;"
        f" `{document['model']}`; llama-cpp-python {document['llama_cpp_python']}. The fact is"
        f" found where an answer has {NUMBER}. Seconds until the first token, nothing cached."
    )
    if "note" in document:
        line += f" {document['note']}"
    rows = [
        [
            f"{row['tokens']:,}",
            f"{row['place']:.0%}",
            *(_shown(row[whose]["text"]) for whose in ("ours", "theirs")),
            *(f"{row[whose]['first']:.1f}" for whose in ("ours", "theirs")),
            f"{row['theirs']['first'] / row['ours']['first']:.2f}",
        ]
        for row in document["rows"]
    ]
    columns = ["tokens", "at", "answer", "llama.cpp's", "first token, s", "llama.cpp's", "ratio"]
    return sections([line, markdown_table(columns, rows)])


def _shown(text: str) -> str:
    found = "found" if NUMBER in text else "not found"
    answer = " ".join(text.split()).replace("|", "\\|")
    return f"{found}: {answer}"


FLAGS = {
    "model": {"type": Path, "metavar": "FILE", "help": "a GGUF file of Qwen's"},
    "--lengths": {"nargs": "+", "type": int, "default": LENGTHS, "help": "tokens of the prompts"},
    "--threads": (usable_threads(), "that compute"),
}
COMMAND = Measurement("needle", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
