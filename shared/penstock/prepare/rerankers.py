"""Decoders that say by one token whether a document answers a query: their scores as a label.

Source: the model cards of Qwen3-Reranker and Qwen3-VL-Reranker, which have the prompt and the two
answers; the key `classifier_from_token` is what vLLM reads.
"""

from __future__ import annotations

import json
from pathlib import Path

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.pooling_config import PairTemplate, PoolingConfig

ANSWERS = "classifier_from_token"
_JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
QWEN3 = PairTemplate(
    before=f"<|im_start|>system\n{_JUDGE}<|im_end|>\n<|im_start|>user\n<Instruct>: ",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
    query="\n<Query>: ",
    document="\n<Document>: ",
    behind="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
QWEN3_VL = PairTemplate(
    system=_JUDGE,
    before="<Instruct>: ",
    instruction="Given a search query, retrieve relevant candidates that answer the query.",
    query="<Query>:",
    document="\n<Document>:",
)
_RERANKERS = {
    "Qwen3ForCausalLM": ("qwen3-reranker", QWEN3),
    "Qwen3VLForConditionalGeneration": ("qwen3-vl-reranker", QWEN3_VL),
}
"""What the name of a folder with such a reranker has in it, and its prompt, by the class in
config.json."""


def read_reranker(
    path: Path, stated: Fields, tokenizer_json: bytes, size: int
) -> PoolingConfig | None:
    """None for another model. The files of Qwen's rerankers don't say what they are: a folder, or a
    repository in the hub's cache, that is called so counts. Raises UnsupportedModel for answers
    that aren't two tokens."""
    template = reranker_template(path, stated)
    if ANSWERS not in stated and template is None:
        return None
    named = stated.listed(ANSWERS, str) if ANSWERS in stated else ["no", "yes"]
    if len(named) != 2:
        raise stated.wrong(ANSWERS, "a list of two tokens, for no and yes,")
    vocabulary = _vocabulary(tokenizer_json)
    for token in named:
        if token not in vocabulary:
            raise UnsupportedModel(
                f"{stated.where}: {ANSWERS}: the tokenizer has no token {token!r}"
            )
    return PoolingConfig(
        mode="last",
        normalize=False,
        size=size,
        labels=(named[1],),
        activation="sigmoid",
        answers=(vocabulary[named[0]], vocabulary[named[1]]),
        template=template,
    )


def reranker_template(path: Path, stated: Fields) -> PairTemplate | None:
    """The prompt of one of Qwen's rerankers, which is one by its folder's name or by its
    config; None for another model."""
    classes = stated.values.get("architectures")
    own = [each for each in classes if each in _RERANKERS] if isinstance(classes, list) else []
    name, template = _RERANKERS[own[0]] if own else ("", QWEN3)
    if stated.flag("is_original_qwen3_reranker", False):
        return template
    # In the hub's cache a repository's files lie in snapshots/REVISION.
    named = path.parent.parent if path.parent.name == "snapshots" else path
    return template if own and name in named.name.lower() else None


def _vocabulary(tokenizer_json: bytes) -> dict[str, int]:
    """Ids of whole tokens, as the tokenizer's file has them."""
    found = json.loads(tokenizer_json).get("model", {}).get("vocab")
    return found if isinstance(found, dict) else {}
