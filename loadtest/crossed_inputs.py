"""What a stream feels of another tenant's products of fields: a part of `loadtest.large_inputs`.

Each body of testing/costs/found.json is sent once to a real server, whose default model
serves the stream.  Bodies that a model of the default's size would compute for minutes go to one of
a single layer with a long context and Llama 3.1's template; what is scored, ranked or embedded goes
to small random encoders.  All of them are behind the same gateway.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
from tokenizers import Tokenizer

from loadtest.report import Document, say, sections, table
from loadtest.sent_once import Sender
from penstock.prepare import prepare
from penstock.prepare.folder import TOKENIZER
from testing.costs.fillers import written
from testing.costs.recipes import Recipe, found
from testing.costs.scene import ARRANGED
from testing.pooling_models import save, sentence_files
from testing.tiny_models import write_gguf

DEFAULT, LAYER = "smollm2-135m", "layer"
GENERATING = ("llama", "qwen", "gemma")
ENCODERS = {"vectors": "vectors", "pairs": "pairs"}
LONG_CONTEXT = 131_072
INPUT = 2048
"""Tokens that an encoder takes."""
LARGE = 100_000
"""Bytes of a body from which on its model has one layer."""
TEMPLATE = Path("tests/shared/text/templates/llama3_1.jinja")
AFTER = 1.0
"""Seconds of the stream after an answer that count for it."""


def models_file(folder: Path) -> Path:
    """The list of models for `penstock serve --models`, made in the folder."""

    def adjust(writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(LONG_CONTEXT)
        writer.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))

    tokenizer = (prepare(DEFAULT) / TOKENIZER).read_bytes()
    layer = write_gguf(
        folder / "layer.gguf",
        adjust=adjust,
        without=("context_length",),
        vocabulary=lambda writer: _add_vocabulary(writer, tokenizer),
    )
    sizes = {"max_position_embeddings": INPUT, "vocab_size": _size(tokenizer)}
    pairs, vectors = folder / "pairs", folder / "vectors"
    save(pairs, "BertForSequenceClassification", num_labels=1, **sizes)
    save(vectors, "BertModel", **sizes)
    sentence_files(vectors, "mean_tokens", normalize=True)
    for encoder in (pairs, vectors):
        (encoder / "tokenizer.json").write_bytes(tokenizer)
    places = {LAYER: layer, "pairs": pairs, "vectors": vectors}
    entries: list[dict[str, Any]] = [{"name": DEFAULT, "model": DEFAULT}]
    entries += [{"name": name, "model": str(place)} for name, place in places.items()]
    for entry in entries:
        entry["memory_gib"] = 1.5
    file = folder / "models.json"
    file.write_text(json.dumps({"models": entries}), encoding="utf-8")
    return file


def _size(tokenizer: bytes) -> int:
    return Tokenizer.from_buffer(tokenizer).get_vocab_size()


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: bytes) -> int:
    """The default model's."""
    stated = json.loads(tokenizer)
    special = {each["content"]: each["id"] for each in stated["added_tokens"]}
    tokens = sorted((stated["model"]["vocab"] | special).items(), key=lambda each: each[1])
    merges = stated["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([3 if token in special else 1 for token, _ in tokens])
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return len(tokens)


class Body(NamedTuple):
    """One that lies in a file. model: whom it is sent to."""

    recipe: Recipe
    model: str
    file: Path
    size: int


def bodies(folder: Path, most: int, only: list[str]) -> list[Body]:
    """An arranged conversation, and the dearest of the list, by what they took when they were
    found. All are written before anything is timed: this process times the streams. only: parts of
    the names of those that are sent; none: any name."""
    # What the first conversation waits for in a thread is known to the ones after it.
    first = Recipe(name="first", path="/v1/chat/completions", body=ARRANGED)
    known = sorted(found(), key=lambda each: -each.was)
    made = [_written(folder, first, LAYER)]
    for recipe in known:
        if only and not any(part in recipe.name for part in only):
            continue
        content = len(recipe.content()) if recipe.model in GENERATING else 0
        model = ENCODERS.get(recipe.model, "")
        if recipe.model in GENERATING:
            model = LAYER if content >= LARGE else DEFAULT
        if model and len(made) <= most:
            made.append(_written(folder, recipe, model))
    return made


def _written(folder: Path, recipe: Recipe, model: str) -> Body:
    body = recipe.body
    content = written({"model": model, **body} if isinstance(body, dict) else body)
    file = folder / f"{len(list(folder.glob('*.body')))}.body"
    file.write_bytes(content)
    return Body(recipe, model, file, len(content))


Heard = Callable[[Callable[[], Awaitable[Document]]], Awaitable[Document]]
"""Does something beside the stream, and tells what the stream felt of it."""


async def crossed(heard: Heard, sending: Sender, sent: list[Body]) -> list[Document]:
    """A row for nothing, and one for each body but the first."""

    async def nothing() -> Document:
        await asyncio.sleep(10.0)
        return {"status": 0, "seconds": 0.0, "bytes": 0, "model": "", "said": ""}

    first, *others = sent
    await sending.send(first.recipe.path, first.file)
    rows = [{"kind": "nothing", "path": "", **await heard(nothing)}]
    for body in others:
        begun = time.monotonic()

        async def send(body: Body = body) -> Document:
            answer = await sending.send(body.recipe.path, body.file)
            await asyncio.sleep(AFTER)
            return {**answer, "bytes": body.size, "model": body.model}

        recipe = body.recipe
        row = {"kind": recipe.name, "path": recipe.path, "was": recipe.was, **await heard(send)}
        say(f"{time.monotonic() - begun:6.1f} s  {row['longest_ms']:8.0f} ms  {row['kind']}")
        rows.append(row)
    return rows


COLUMNS = {
    "body": "{kind}",
    "path": "{path}",
    "kB": "{kilobytes:,.0f}",
    "to": "{model}",
    "answer": "{answer}",
    "after, s": "{seconds:.2f}",
    "longest silence in a stream, ms": "{longest_ms:,.0f}",
    "times undisturbed": "{times:.1f}",
    "p99, ms": "{p99_ms:,.1f}",
    "first piece at the latest, ms": "{first_ms:,.0f}",
    "runs again after, s": "{calm_seconds:.1f}",
    "sessions lost": "{sessions_lost}",
    "gateway ran, s": "{gateway_seconds:.2f}",
}


def page(rows: list[Document], patience: float) -> str:
    """The table."""
    usual = rows[0]["longest_ms"]
    shown = [
        {
            **row,
            "kilobytes": row["bytes"] / 1000,
            "times": row["longest_ms"] / usual if usual else 0.0,
            "answer": row["status"] or ("" if row is rows[0] else f"none in {patience:g} s"),
        }
        for row in rows
    ]
    return sections((table(COLUMNS, shown), _UNANSWERED if any(map(_is_open, rows)) else ""))


_UNANSWERED = (
    "Where there was no answer, none was due: the request was right, and the model went on with it"
    " in its tenant's share of the steps until the client left. 128 prompts with 8 answers of 64"
    " tokens are 65,536 tokens, and 128 texts of 20,000 characters some 500,000."
)


def _is_open(row: Document) -> bool:
    """Whether the client gave up."""
    return not row["status"] and row["bytes"] > 0
