"""Decoders that say by one token whether a document answers a query: their scores as a label.

Source: the model card of Qwen3-Reranker, which has the prompt and the two answers; the key
`classifier_from_token` is what vLLM reads.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.pooling_config import PairTemplate, PoolingConfig

ANSWERS = "classifier_from_token"
_QWEN3 = re.compile(r"qwen3-reranker", re.IGNORECASE)
_QWEN3_TEMPLATE = PairTemplate(
    before=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
        "answer the query\n<Query>: "
    ),
    between="\n<Document>: ",
    behind="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


def read_reranker(
    path: Path, stated: Fields, tokenizer_json: bytes, size: int
) -> PoolingConfig | None:
    """None for another model. Qwen3-Reranker's own files don't say what they are: a folder, or a
    repository in the hub's cache, that is called so counts. Raises UnsupportedModel for answers
    that aren't two tokens."""
    original = _is_qwen3(path, stated)
    if ANSWERS not in stated and not original:
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
    qwen3 = original or stated.flag("is_original_qwen3_reranker", False)
    return PoolingConfig(
        mode="last",
        normalize=False,
        size=size,
        labels=(named[1],),
        activation="sigmoid",
        answers=(vocabulary[named[0]], vocabulary[named[1]]),
        template=_QWEN3_TEMPLATE if qwen3 else None,
    )


def _is_qwen3(path: Path, stated: Fields) -> bool:
    classes = stated.values.get("architectures")
    if not isinstance(classes, list) or "Qwen3ForCausalLM" not in classes:
        return False
    # In the hub's cache a repository's files lie in snapshots/REVISION.
    named = path.parent.parent if path.parent.name == "snapshots" else path
    return _QWEN3.search(named.name) is not None


def _vocabulary(tokenizer_json: bytes) -> dict[str, int]:
    """Ids of whole tokens, as the tokenizer's file has them."""
    found = json.loads(tokenizer_json).get("model", {}).get("vocab")
    return found if isinstance(found, dict) else {}
