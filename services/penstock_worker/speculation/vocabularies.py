"""Whether ids of tokens mean the same to two models."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import StartupError
from penstock.model.config import PreparedModel
from penstock.prepare.folder import TOKENIZER
from penstock.text.tokenizer import Tokenizer

Model = tuple[PreparedModel, str]
"""A prepared model with its prepared folder."""


def check_vocabularies(served: Model, draft: Model) -> None:
    """Raises StartupError unless all ids that both tokenizers know are the same tokens. One may
    know more of them, and either model may have rows of padding after them."""
    digests = [prepared.contents.get(TOKENIZER) for prepared, _ in (served, draft)]
    if digests[0] is not None and digests[0] == digests[1]:
        return
    texts, others = _texts(served), _texts(draft)
    shared = [
        (own, other)
        for own, other in zip(texts, others, strict=False)
        if own is not None and other is not None
    ]
    different = sum(own != other for own, other in shared)
    if not different and 2 * len(shared) > max(len(texts), len(others)):
        return
    names = served[0].name, draft[0].name
    raise StartupError(
        f"{names[1]} can't draft for {names[0]}: of {len(texts)} and {len(others)} tokens,"
        f" {len(shared) - different} have the same id; a draft model has to have the tokenizer of"
        " the model that is served"
    )


def _texts(model: Model) -> list[str | None]:
    """Returns the texts of all ids in order; None for those that stand for nothing."""
    prepared, folder = model
    path = Path(folder) / TOKENIZER
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StartupError(f"{path} can't be read: {error}") from error
    found = Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None).table.texts
    return list(found[: prepared.decoder.vocab_size])
