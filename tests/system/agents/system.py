"""A real gateway and engine core, beside a worker that says what it is told to."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer

from penstock.prepare import prepare
from penstock.prepare.folder import TOKENIZER, load_manifest, write_folder
from penstock.protocol.to_worker import NewSequence
from testing.null_worker import Answers, NullWorker, Slot
from testing.processes import MODEL, back, engine, front_end, gateway
from tests.system.agents.writing import Writing

CONTEXT = 131_072
"""Tokens of the model's."""
FLAGS = ("--max-model-len", str(CONTEXT), "--max-num-batched-tokens", "8192")
PATIENCE = 30.0


class Script(Answers):
    """What each request says, by its seed, and the prompts that came."""

    def __init__(self) -> None:
        super().__init__([])
        self.says: dict[int, list[int]] = {}
        self.prompts: dict[int, list[int]] = {}

    def _slot(self, new: NewSequence) -> Slot:
        self.prompts[new.sampling.seed] = new.tokens[: new.num_prompt]
        return super()._slot(new)

    def _token(self, seed: int, place: int) -> int:
        said = self.says[seed]
        # The step behind an answer's last may be on its way already.
        return said[min(place, len(said) - 1)]


@dataclass(frozen=True, slots=True)
class Scripted:
    """The running system. tokenizer: of its model, with the family's marks as tokens."""

    url: str
    model: str
    script: Script
    tokenizer: Tokenizer

    def say(self, seed: int, text: str) -> list[int]:
        """Lets the request of that seed be answered so, and returns the answer's tokens."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        self.script.says[seed] = ids
        return ids


@contextmanager
def serving(writing: Writing) -> Iterator[Scripted]:
    """A system whose model writes so. Raises FileNotFoundError where its template isn't there."""
    with tempfile.TemporaryDirectory(prefix="pst-") as made:
        folder = Path(made)
        model, tokenizer = _model(folder, writing)
        script = Script()
        with engine(folder, model, FLAGS):
            worker = NullWorker(back(folder), script, 0.0)
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            try:
                with gateway(front_end(folder), log=folder / "gateway.log") as front:
                    yield Scripted(front.url, load_manifest(model).name, script, tokenizer)
            finally:
                worker.stop()
                thread.join(PATIENCE)
                worker.leave()


def _model(folder: Path, writing: Writing) -> tuple[Path, Tokenizer]:
    """A prepared folder that nothing can compute, with the family's template and its marks."""
    prepared = prepare(MODEL)
    manifest = load_manifest(prepared)
    tokenizer = Tokenizer.from_file(str(prepared / TOKENIZER))
    special, others = writing.marks()
    tokenizer.add_special_tokens([AddedToken(mark, normalized=False) for mark in special])
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in others])
    ends = tuple(dict.fromkeys(map(tokenizer.token_to_id, writing.ends)))
    size = max(tokenizer.get_vocab_size(), manifest.config.vocab_size)
    manifest = msgspec.structs.replace(
        manifest,
        config=msgspec.structs.replace(manifest.config, max_position=CONTEXT, vocab_size=size),
        generation=msgspec.structs.replace(manifest.generation, eos_token_ids=ends),
        has_chat_template=True,
    )
    content = tokenizer.to_str().encode()
    return write_folder(folder / "model", manifest, content, writing.source()), tokenizer
