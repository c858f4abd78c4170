"""From a prompt with a placeholder for each item of media to token ids with a place for each
embedding.

The text around an item's embeddings is put in before the prompt is tokenised, since its tokens
may merge with those of the neighbouring text (Gemma 3's line breaks); the embeddings' own token
stands once for each run, and is repeated afterwards. Both together give what transformers'
processors give. Of each kind of media, items stand in the prompt in the order in which they were
given.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from penstock.errors import InvalidRequest
from penstock.media.layout import ItemLayout
from penstock.media.words import WORDS
from penstock.model.media_facts import KindFacts, MediaFacts, MediaKind
from penstock.protocol.media import MediaSpan


def uncounted(text: str, facts: MediaFacts) -> str:
    """The prompt with its placeholders instead of numbered ones. Raises InvalidRequest for numbers
    that don't count the items in their order: what stands for an item says nothing of others."""
    for kind, own in facts.kinds.items():
        begin, end = own.counted
        if not begin:
            continue
        pattern = re.compile(rf"{re.escape(begin)}(\d{{1,9}}){re.escape(end)}")
        numbers = [int(number) for number in pattern.findall(text)]
        if numbers != list(range(1, len(numbers) + 1)):
            shown = ", ".join(map(str, numbers[:20]))
            raise InvalidRequest(
                f"the prompt numbers its {WORDS[kind]}s {shown}; {begin}1{end} must come first, "
                "and each number once, in order"
            )
        text = own.placeholder.join(pattern.split(text)[::2])
    return text


def with_runs(text: str, facts: MediaFacts, layouts: Sequence[ItemLayout]) -> str:
    """The prompt, with each placeholder replaced by what surrounds its item's runs, and a token
    for each run. Raises InvalidRequest unless there are as many placeholders as items."""
    kinds = {each.placeholder: kind for kind, each in facts.kinds.items() if each.placeholder}
    by_length = sorted(kinds, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, by_length))})", text) if kinds else [text]
    found = parts[1::2]
    check_count(Counter(kinds[each] for each in found), facts, layouts)
    waiting = _by_kind(facts, layouts)
    pieces = [parts[0]]
    for mark, part in zip(found, parts[2::2], strict=True):
        one = next(waiting[kinds[mark]])
        token = facts.kinds[one.kind].token
        pieces += [f"{run.text}{token}" for run in one.runs]
        pieces += [one.behind, part]
    return "".join(pieces)


def with_rows(
    prompt_token_ids: Sequence[int], facts: MediaFacts, layouts: Sequence[ItemLayout]
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """The ids of a text from `with_runs`, each run's token repeated for its embeddings; and where
    these are. Raises InvalidRequest where the prompt writes that token itself."""
    kinds = {each.token_id: kind for kind, each in facts.kinds.items() if each.placeholder}
    places = [at for at, token in enumerate(prompt_token_ids) if token in kinds]
    _check_tokens(Counter(kinds[prompt_token_ids[at]] for at in places), facts, layouts)
    waiting = {kind: _runs(kind, layouts) for kind in facts.kinds}
    ids: list[int] = []
    spans, copied = [], 0
    for at in places:
        token = prompt_token_ids[at]
        item, first, rows = next(waiting[kinds[token]])
        ids += prompt_token_ids[copied:at]
        spans.append(MediaSpan(item, len(ids), rows, first))
        shown = facts.kinds[kinds[token]].shown_id
        ids += [token if shown is None else shown] * rows
        for place, other in layouts[item].marked:
            if first <= place < first + rows:
                ids[place - first - rows] = other
        copied = at + 1
    ids += prompt_token_ids[copied:]
    return ids, tuple(spans)


def ids_with_runs(
    prompt_token_ids: Sequence[int],
    facts: MediaFacts,
    placeholders: Mapping[int, MediaKind],
    layouts: Sequence[ItemLayout],
    encode: Callable[[str], list[int]],
) -> list[int]:
    """The ids as with_runs makes them of a text, for a prompt that is tokenised already: what
    surrounds an item is tokenised by itself. placeholders: the kind that a token stands for. Raises
    InvalidRequest."""
    found = Counter(placeholders[each] for each in prompt_token_ids if each in placeholders)
    check_count(found, facts, layouts)
    ids: list[int] = []
    waiting = _by_kind(facts, layouts)
    for token in prompt_token_ids:
        if token not in placeholders:
            ids.append(token)
            continue
        one = next(waiting[placeholders[token]])
        for run in one.runs:
            ids += [*(encode(run.text) if run.text else ()), facts.kinds[one.kind].token_id]
        ids += encode(one.behind) if one.behind else ()
    return ids


def in_front(
    prompt_token_ids: Sequence[int],
    facts: MediaFacts,
    kind: MediaKind,
    layouts: Sequence[ItemLayout],
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """The ids of a decoder's prompt after those of the item that its encoder takes; and where this
    is. Raises InvalidRequest for several items, and for an empty prompt."""
    if len(layouts) != 1 or layouts[0].kind != kind:
        raise InvalidRequest(
            f"the prompt has {len(layouts)} {WORDS[kind]}s; this model takes one with each prompt"
        )
    if not prompt_token_ids:
        raise InvalidRequest(f"there is no prompt with the {WORDS[kind]}")
    rows = layouts[0].rows
    ids = [facts.kinds[kind].token_id] * rows + list(prompt_token_ids)
    return ids, (MediaSpan(0, 0, rows, 0),)


def with_one(prompt_token_ids: list[int], mark: list[int], token: int) -> list[int]:
    """The ids with one token for a placeholder that has several."""
    if len(mark) == 1:
        return prompt_token_ids
    ids: list[int] = []
    at = 0
    while at < len(prompt_token_ids):
        found = prompt_token_ids[at : at + len(mark)] == mark
        ids.append(token if found else prompt_token_ids[at])
        at += len(mark) if found else 1
    return ids


def check_count(
    found: Mapping[MediaKind, int], facts: MediaFacts, layouts: Sequence[ItemLayout]
) -> None:
    """Raises InvalidRequest unless a prompt has a placeholder for each item."""
    given = Counter(one.kind for one in layouts)
    for kind, each in facts.kinds.items():
        if each.placeholder and found.get(kind, 0) != given[kind]:
            raise InvalidRequest(
                f"the prompt has {found.get(kind, 0)} placeholders {each.placeholder} for "
                f"{given[kind]} {WORDS[kind]}s; it must have one for each"
            )


def _check_tokens(
    found: Mapping[MediaKind, int], facts: MediaFacts, layouts: Sequence[ItemLayout]
) -> None:
    for kind, each in facts.kinds.items():
        runs = sum(len(one.runs) for one in layouts if one.kind == kind)
        if each.placeholder and found.get(kind, 0) != runs:
            raise InvalidRequest(
                f"the prompt holds {found.get(kind, 0)} tokens {each.token}, where its "
                f"{WORDS[kind]}s have {runs}; that token can't stand in a prompt for anything else"
            )


def _by_kind(
    facts: MediaFacts, layouts: Sequence[ItemLayout]
) -> dict[MediaKind, Iterator[ItemLayout]]:
    kinds = dict.fromkeys(one.kind for one in layouts)
    return {kind: _numbered(facts.kinds[kind], kind, layouts) for kind in kinds}


def _numbered(
    own: KindFacts, kind: MediaKind, layouts: Sequence[ItemLayout]
) -> Iterator[ItemLayout]:
    """The items of a kind, each with its number before it where they are numbered."""
    begin, end = own.numbered
    for number, one in enumerate(each for each in layouts if each.kind == kind):
        first, *others = one.runs
        text = f"{begin}{number}{end}{first.text}" if begin else first.text
        yield one._replace(runs=(first._replace(text=text), *others))


def _runs(kind: MediaKind, layouts: Sequence[ItemLayout]) -> Iterator[tuple[int, int, int]]:
    """Each run of that kind: its item's number, its first embedding in it, its embeddings."""
    for item, one in enumerate(layouts):
        row = 0
        for run in one.runs if one.kind == kind else ():
            yield item, row, run.rows
            row += run.rows
