"""Models that give vectors or classes: what is asked of them, and what they answer."""

from __future__ import annotations

from itertools import pairwise

from penstock.errors import InvalidRequest
from penstock.model.pooling_config import PoolingConfig
from penstock.protocol.common import Pooling, PoolingTask, Vectors
from penstock.protocol.from_frontend import Submit
from penstock.protocol.from_worker import Result
from penstock.request.pooling_params import check_dimensions
from penstock_engine.handlers.ranges import check_whole
from penstock_engine.request.step_in_flight import StepInFlight, UnfitResult


def check_pooling(
    submit: Submit,
    pooling: PoolingConfig | None,
    tasks: tuple[PoolingTask, ...],
    longest: int,
    aligned_rows: int = 0,
) -> None:
    """Raises InvalidRequest unless the model can do what is asked. longest: input, tokens.
    aligned_rows: see check_alignment."""
    asked = submit.pooling
    if asked is not None and asked.task == "align":
        check_alignment(submit, asked, aligned_rows)
        return
    if pooling is None or asked is None:
        if asked is not None:
            raise InvalidRequest("this model generates text; it can't return vectors")
        if pooling is not None:
            raise InvalidRequest("this is a pooling model; it generates no text")
        return
    if asked.task not in tasks:
        raise InvalidRequest(
            f"task is {asked.task}; this model supports {', '.join(tasks)}", param="task"
        )
    tokens = len(submit.prompt_token_ids)
    if tokens > longest:
        raise InvalidRequest(
            f"the input has {tokens} tokens; this model takes at most {longest}",
            param="input",
            code="context_length_exceeded",
        )
    if asked.token_types and len(asked.token_types) != tokens:
        raise InvalidRequest(f"there are {len(asked.token_types)} token types for {tokens} tokens")
    if asked.seen:
        if pooling.late is None:
            raise InvalidRequest("tokens of this model see all others")
        check_whole("tokens that are seen", asked.seen, 1, tokens)
    check_dimensions(asked.dimensions, pooling)
    _check_alone(submit)


def check_alignment(submit: Submit, asked: Pooling, encoder_rows: int) -> None:
    """Raises InvalidRequest unless the tokens of the prompt after the encoder's rows can be aligned
    in time. encoder_rows: 0 where the model doesn't support alignment."""
    if not encoder_rows:
        raise InvalidRequest(
            "word times are not available here: they need a single worker on a CPU"
        )
    if submit.media is None:
        raise InvalidRequest("word times need audio, and the request has none")
    check_whole("rows of an alignment", asked.rows, 1, encoder_rows)
    tokens = len(submit.prompt_token_ids) - encoder_rows
    check_whole("skipped tokens of an alignment", asked.skipped, 1, max(1, tokens - 1))
    if tokens <= asked.skipped:
        raise InvalidRequest("word times need at least one token")
    _check_alone(submit)


def _check_alone(submit: Submit) -> None:
    alone = len(submit.sequences) == 1 and submit.stopping.max_tokens == 1
    if not alone or submit.sequences[0].emitted or submit.grammar is not None:
        raise InvalidRequest("a pooling request must have one sequence and generate nothing")
    if submit.sampling.prompt_logprobs is not None:
        raise InvalidRequest("a pooling request can't have log-probabilities")


def verify_alignments(step: StepInFlight, result: Result, encoder_rows: int) -> None:
    """Raises UnfitResult unless each slot that was to align gave a number for each of its tokens,
    and no other slot did."""
    for (sequence, _, _), outcome in zip(step.items, result.slots, strict=True):
        asked, vectors = sequence.request.pooling, outcome.vectors
        if outcome.token is None or (asked is None and vectors is None):
            continue
        if asked is None or vectors is None or not vectors.is_sound():
            raise UnfitResult(
                f"slot {outcome.slot} returned an invalid alignment, or one that was not requested"
            )
        tokens = len(sequence.request.prompt_token_ids) - encoder_rows - asked.skipped
        if vectors.shape != (tokens,):
            raise UnfitResult(
                f"slot {outcome.slot} returned an alignment of {vectors.shape}, not of {tokens} "
                "tokens"
            )


def verify_vectors(step: StepInFlight, result: Result, pooling: PoolingConfig) -> None:
    """Raises UnfitResult unless each slot that gave something gave the vectors asked for."""
    for (sequence, _, _), outcome in zip(step.items, result.slots, strict=True):
        if outcome.token is None:
            continue
        request, vectors = sequence.request, outcome.vectors
        if vectors is None or request.pooling is None or not vectors.is_sound():
            raise UnfitResult(f"slot {outcome.slot} returned invalid vectors")
        if request.pooling.task == "embed_sparse":
            _verify_places(vectors, pooling, outcome.slot)
            continue
        expected = _shape(request.pooling, pooling, len(request.prompt_token_ids))
        if vectors.shape != expected or vectors.places is not None:
            raise UnfitResult(
                f"slot {outcome.slot} returned vectors of shape {vectors.shape}, not {expected}"
            )


def _verify_places(vectors: Vectors, pooling: PoolingConfig, slot: int) -> None:
    """Raises UnfitResult for what isn't a sparse vector over the vocabulary."""
    places = vectors.indexes()
    size = 0 if pooling.sparse is None else pooling.sparse.size
    ascend = all(one < other for one, other in pairwise(places))
    if vectors.places is None or not ascend or (places and not 0 <= places[0] <= places[-1] < size):
        raise UnfitResult(f"slot {slot} returned an invalid sparse vector")


def _shape(asked: Pooling, pooling: PoolingConfig, tokens: int) -> tuple[int, ...]:
    if asked.task == "classify":
        return (len(pooling.labels),)
    if asked.task == "token_classify":
        return (tokens, len(pooling.labels))
    if asked.task == "embed":
        return (asked.dimensions or pooling.size,)
    return (tokens, asked.dimensions or pooling.token_size)
