"""From a prompt with a placeholder for each picture to token ids with a place for each embedding.

The text around a picture's embeddings is put in before the prompt is tokenised, since it may join
what stands beside it (Gemma 3's line breaks); the embeddings' own token stands once for each run,
and is repeated afterwards.  Both together give what transformers' processors give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import InvalidRequest
from penstock.media.layout import PictureLayout
from penstock.media_facts import MediaFacts
from penstock.protocol.common import MediaSpan


def with_runs(text: str, facts: MediaFacts, layouts: Sequence[PictureLayout]) -> str:
    """The prompt, with each placeholder replaced by what surrounds its picture's runs, and a token
    for each run. Raises InvalidRequest unless there are as many placeholders as pictures."""
    parts = text.split(facts.placeholder)
    check_count(len(parts) - 1, facts, layouts)
    pieces = [parts[0]]
    for one, part in zip(layouts, parts[1:], strict=True):
        pieces += [f"{run.text}{facts.token}" for run in one.runs]
        pieces += [one.behind, part]
    return "".join(pieces)


def with_rows(
    prompt_token_ids: Sequence[int], facts: MediaFacts, layouts: Sequence[PictureLayout]
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """The ids of a text from `with_runs`, each run's token repeated for its embeddings; and where
    these are. Raises InvalidRequest where the prompt writes that token itself."""
    runs = [
        (item, first, run.rows)
        for item, one in enumerate(layouts)
        for first, run in zip(_firsts(one), one.runs, strict=True)
    ]
    places = [at for at, token in enumerate(prompt_token_ids) if token == facts.token_id]
    if len(places) != len(runs):
        raise InvalidRequest(
            f"the prompt holds {len(places)} tokens {facts.token}, where its pictures have "
            f"{len(runs)}; that token can't stand in a prompt for anything else"
        )
    ids: list[int] = []
    spans, behind = [], 0
    for at, (item, first, rows) in zip(places, runs, strict=True):
        ids += prompt_token_ids[behind:at]
        spans.append(MediaSpan(item, len(ids), rows, first))
        ids += [facts.token_id] * rows
        behind = at + 1
    ids += prompt_token_ids[behind:]
    return ids, tuple(spans)


def ids_with_runs(
    prompt_token_ids: Sequence[int],
    facts: MediaFacts,
    placeholder_id: int,
    layouts: Sequence[PictureLayout],
    encode: Callable[[str], list[int]],
) -> list[int]:
    """As with_runs, for a prompt that is tokenised already: what surrounds a picture is tokenised
    by itself. Raises InvalidRequest."""
    count = sum(token == placeholder_id for token in prompt_token_ids)
    check_count(count, facts, layouts)
    ids: list[int] = []
    waiting = iter(layouts)
    for token in prompt_token_ids:
        if token != placeholder_id:
            ids.append(token)
            continue
        one = next(waiting)
        for run in one.runs:
            ids += [*(encode(run.text) if run.text else ()), facts.token_id]
        ids += encode(one.behind) if one.behind else ()
    return ids


def check_count(found: int, facts: MediaFacts, layouts: Sequence[PictureLayout]) -> None:
    """Raises InvalidRequest unless a prompt has a placeholder for each picture."""
    if found != len(layouts):
        raise InvalidRequest(
            f"the prompt has {found} placeholders {facts.placeholder} for {len(layouts)} pictures; "
            "it must have one for each"
        )


def _firsts(one: PictureLayout) -> list[int]:
    """Of each run, its first embedding in the picture."""
    firsts, row = [], 0
    for run in one.runs:
        firsts.append(row)
        row += run.rows
    return firsts
