"""Which prompts a model takes, and how much output a request may have."""

from __future__ import annotations

from penstock.errors import Field, InvalidRequest
from penstock.protocol.to_frontend import Limits, Welcome

POOLS = "this model gives embeddings, scores or classes; it generates no text"


def check_generates(welcome: Welcome) -> None:
    """Raises InvalidRequest where a pooling model is served."""
    if welcome.pooling is not None:
        raise InvalidRequest(POOLS, param="model", code="unsupported_model")


def check_prompt(prompt: list[int], welcome: Welcome) -> None:
    """Raises InvalidRequest for a prompt that can't run: empty, too long, ids out of range."""
    if not prompt:
        raise InvalidRequest("the prompt is empty; it must have at least one token", param="prompt")
    limit = welcome.limits.max_model_len
    if len(prompt) >= limit:
        raise InvalidRequest(
            f"the prompt has {len(prompt)} tokens; this model's context is {limit} tokens, "
            "output included",
            param="prompt",
            code="context_length_exceeded",
        )
    vocabulary = welcome.limits.vocab_size
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        bad = next(token for token in prompt if not 0 <= token < vocabulary)
        raise InvalidRequest(
            f"token id {bad} is not in the vocabulary, 0 to {vocabulary - 1}", param="prompt"
        )


def max_output(
    prompt_tokens: int, wanted: int | None, sequences: int, limits: Limits, *, many: str = "n"
) -> int:
    """Tokens that each of a request's sequences may emit: as many as are wanted (None: any number),
    and as the context leaves.  many: the field that says how many sequences there are.

    Raises InvalidRequest where all of them together could have more than a request may.  One alone
    may always fill the context.
    """
    room = limits.max_model_len - prompt_tokens
    output = room if wanted is None else min(wanted, room)
    if sequences <= 1:  # What is no number of sequences is refused elsewhere.
        return output
    allowed = limits.max_request_tokens
    left = allowed // sequences - prompt_tokens
    if wanted is None and left >= 1:
        return min(output, left)
    if output <= left:
        return output
    each = prompt_tokens + (1 if wanted is None else output)
    raise InvalidRequest(
        f"{many} is {sequences}, and each sequence may have {each} tokens, the prompt's "
        f"{prompt_tokens} among them: together {sequences * each}, more than the {allowed} that "
        "one request may have (--max-request-tokens); with so many each, ",
        Field(many),
        f" may be at most {max(1, allowed // each)}",
        param=many,
    )
