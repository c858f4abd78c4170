"""Does speed cost quality? Perplexity on a fixed text and 24 greedy answers, side by side:
`python -m loadtest.quality --help`.

transformers computes the dequantised weights in float32; the CPU kernels compute the same file in
float32, in bfloat16, and as it is (quantised weights and activations: the default).  About three
minutes on two cores.
"""

from __future__ import annotations

import os
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the worker has it
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from loadtest.answers import TEXT, Computer, Penstock, from_gguf, perplexity
from loadtest.peers.servers import default_model
from loadtest.report import Document, Flags, Measurement, machine_line, markdown_table, say
from penstock.machine import usable_cores
from penstock.prepare import load_manifest, prepare
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer

TRUTH = "transformers float32"
DTYPES = {"cpu float32": "float32", "cpu bfloat16": "bfloat16", "cpu quantised": "auto"}
WANTED = 48
QUESTIONS = Path(__file__).with_name("quality_questions.txt").read_text().splitlines()


def measure(flags: Flags) -> Document:
    """Perplexities and answers."""
    file = default_model()
    threads = max(int(usable_cores()), 1)
    torch.set_num_threads(threads)
    folder = prepare(str(file))
    manifest = load_manifest(folder)
    generation = manifest.generation
    tokenizer = Tokenizer.from_bytes(
        (folder / "tokenizer.json").read_bytes(),
        add_bos=manifest.add_bos,
        bos_token_id=generation.bos_token_id,
    )
    source = (folder / "chat_template.jinja").read_text()
    template = ChatTemplate(source, tokenizer, generation=generation)
    prompts = [template.encode([{"role": "user", "content": each}]) for each in QUESTIONS]
    text = tokenizer.encode(TEXT.read_text())
    computers: dict[str, Computer] = {TRUTH: from_gguf(file)}
    for name, dtype in DTYPES.items():
        computers[name] = Penstock(folder, dtype, threads=threads)
    perplexities: dict[str, float] = {}
    answers: dict[str, list[list[int]]] = {}
    for name, computer in computers.items():
        perplexities[name] = perplexity(computer, text)
        say(f"quality: {name}: perplexity {perplexities[name]:.4f}")
        answers[name] = computer.greedy(prompts, flags.tokens, set(generation.eos_token_ids))
    return {
        "model": file.name,
        "text": {"file": TEXT.name, "tokens": len(text)},
        "perplexity": perplexities,
        "answers": [answered(tokenizer, number, answers) for number in range(len(QUESTIONS))],
    }


def answered(
    tokenizer: Tokenizer, number: int, answers: dict[str, list[list[int]]]
) -> dict[str, Any]:
    """One question, and what each way of computing says to it."""
    said = {
        name: {
            "text": tokenizer.decode(found[number]),
            "tokens_as_truth": agreement(found[number], answers[TRUTH][number]),
            "tokens": len(found[number]),
        }
        for name, found in answers.items()
    }
    return {"question": QUESTIONS[number], **said}


def agreement(one: list[int], other: list[int]) -> int:
    """Tokens before the two part."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def to_markdown(document: Document) -> str:
    truth, answers = document["perplexity"][TRUTH], document["answers"]
    rows = []
    for name, value in document["perplexity"].items():
        same = sum(answer[name]["text"] == answer[TRUTH]["text"] for answer in answers)
        shared = sum(answer[name]["tokens_as_truth"] for answer in answers) / len(answers)
        against = f"{100 * (value / truth - 1):+.3f} %"
        rows.append([name, f"{value:.4f}", against, f"{same} of {len(answers)}", f"{shared:.1f}"])
    columns = ["", "perplexity", "against transformers", "same answers"]
    parts = [
        f"{machine_line(document)}; {document['model']}, {document['text']['tokens']} tokens of "
        f"`{document['text']['file']}`.\n",
        markdown_table([*columns, "mean tokens before an answer parts"], rows),
        "",
    ]
    for answer in answers:
        parts.append(f"**{answer['question']}**\n")
        said: dict[str, list[str]] = {}
        for name in document["perplexity"]:
            said.setdefault(" ".join(answer[name]["text"].split()), []).append(name)
        parts += [f"- {', '.join(names)}: {text}" for text, names in said.items()]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


FLAGS = {"--tokens": (WANTED, "of an answer, at most")}
COMMAND = Measurement("quality", __doc__, measure, to_markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
