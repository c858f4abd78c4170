"""Token ids from text and back, on the light `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import Sequence

from penstock.errors import InvalidRequest, UnsupportedModel
from penstock.text.token_table import TokenBytes, TokenTable

MAX_ID = 2**32 - 1

LONG_TEXT = 4096
"""Characters from which on a text is encoded by calls that let go of the interpreter's lock."""
PIECE = 16 << 10
"""Characters that are counted at once, where a text may have too many tokens."""
LONG_IDS = 4096
"""Ids from which on they are decoded by a call that lets go of the lock."""


class Tokenizer:
    """The tokenizer that a tokenizer.json describes. Safe to share between threads.

    add_bos: whether a plain prompt begins with BOS.
    Raises UnsupportedModel if the JSON isn't a tokenizer.
    """

    def __init__(self, content: bytes, *, add_bos: bool, bos_token_id: int | None) -> None:
        self.add_bos = add_bos and bos_token_id is not None
        self.bos_token_id = bos_token_id
        self._backend = load_backend(content)
        self._visible_bytes: dict[bool, TokenBytes] = {}
        self._fallback_pieces: dict[bool, list[str | int | None]] = {}

    @classmethod
    def from_bytes(
        cls, tokenizer_json: bytes, *, add_bos: bool, bos_token_id: int | None
    ) -> Tokenizer:
        """Makes a tokenizer from the contents of a tokenizer.json."""
        return cls(tokenizer_json, add_bos=add_bos, bos_token_id=bos_token_id)

    def encode(
        self,
        text: str,
        *,
        parse_special: bool = True,
        add_special: bool = True,
        begins: bool = True,
        most: int | None = None,
        first: int | None = None,
        last: int | None = None,
    ) -> list[int]:
        """Token ids of a text.  Of a long one, most of the time is spent outside the interpreter's
        lock.

        parse_special: the text of a special token becomes that token; else it is plain text.
        add_special: BOS goes in front if the model wants it, but never a second one.
        begins: a plain text is a prompt's beginning; some tokenizers mark that with a space.
        most: a text that has clearly more tokens is refused as soon as that is seen.
        first, last: so many ids of the text's beginning or end are wanted; of a text that has more
        than twice as many, what is too far from there isn't encoded.
        Raises InvalidRequest for a text that is refused, and for one that has no UTF-8 form (lone
        surrogates).
        """
        plain = self._plain if begins else self._continuing
        backend = self._backend if parse_special else plain
        with _library_errors():
            if most is not None and _may_have_more(text, most):
                _check_count(backend, text, most)
            if first is not None:
                text = _part(backend, text, first)
            if last is not None:
                text = _part(backend, text, last, from_end=True)
            encoding = _encoded(backend, text, add_special)
            ids: list[int] = encoding.ids
            # Freeing many tokens takes time too: another thread may have the lock before.
            del encoding
        return self._with_one_bos(ids) if add_special else ids

    def encode_typed(
        self,
        text: str,
        pair: str | None,
        *,
        add_special: bool = True,
        limit: int | None = None,
        keeps_end: bool = False,
        most: int | None = None,
    ) -> tuple[list[int], bytes]:
        """Token ids of a text, or of two that belong together, and which of them each is of.

        limit: ids at most, special ones included: texts are cut at their ends, of two the longer
        one first (as transformers' `longest_first`).  Of a text with more than twice as many only
        the beginning is encoded; of two such texts, the one whose beginning has fewer tokens counts
        as the shorter.  keeps_end: they are cut at their beginnings instead.  most: as `encode` has
        it, of each.  Raises InvalidRequest for that, and for a text that has no UTF-8 form.
        """
        backend = self._backend
        with _library_errors():
            for each in (text, pair or ""):
                if most is not None and _may_have_more(each, most):
                    _check_count(backend, each, most)
            if limit is not None:
                text = _part(backend, text, limit, from_end=keeps_end)
                pair = pair and _part(backend, pair, limit, from_end=keeps_end)
            first = _encoded(backend, text, False)
            second = None if pair is None else _encoded(backend, pair, False)
        if limit is not None:
            own = backend.num_special_tokens_to_add(pair is not None) if add_special else 0
            lengths = (len(first.ids), 0 if second is None else len(second.ids))
            kept = _longest_first(*lengths, max(0, limit - own))
            side = "left" if keeps_end else "right"
            first.truncate(kept[0], direction=side)
            if second is not None:
                second.truncate(kept[1], direction=side)
        with _library_errors():
            whole = backend.post_process(first, second, add_special)
        return whole.ids, bytes(min(kind, 255) for kind in whole.type_ids)

    def spans(self, text: str, *, limit: int | None = None) -> list[tuple[int, int] | None]:
        """Where in the text each token of `encode_typed` comes from, characters; None: it is one of
        the special tokens around it. Raises InvalidRequest for a text that has no UTF-8 form."""
        backend = self._backend
        with _library_errors():
            text = text if limit is None else _part(backend, text, limit)
            text.encode()
            (found,) = backend.encode_batch([text], add_special_tokens=False)
            if limit is not None:
                own = backend.num_special_tokens_to_add(False)
                found.truncate(max(0, limit - own))
            whole = backend.post_process(found, None, True)
        ours = (number is not None for number in whole.sequence_ids)
        return [span if own else None for span, own in zip(whole.offsets, ours, strict=True)]

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids. Ids that the vocabulary lacks have no text.  Of many ids, most of the
        time is spent outside the interpreter's lock."""
        _check_ids(ids)
        with _library_errors():
            if len(ids) < LONG_IDS:
                text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
            else:
                [text] = self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token: int) -> str:
        """A token on its own as text; what isn't whole UTF-8 shows as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; b"" if there is no such token."""
        return self.table.token_bytes(token)

    def token_names(self, ids: list[int]) -> list[str]:
        """The vocabulary's own texts of tokens; empty for ids without one."""
        names = self.table.texts.of(set(ids))
        return [names[token] for token in ids]

    @cached_property
    def vocab_size(self) -> int:
        """Number of token ids: the highest id plus one."""
        return len(self.table.texts)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the special tokens: those that skip_special_tokens leaves out."""
        return frozenset(self.special_tokens.values())

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the special tokens."""
        return {
            token.content: i
            for i, token in self.added_tokens.items()
            if token.special and token.content
        }

    @cached_property
    def added_tokens(self) -> dict[int, AddedToken]:
        """The tokens that are found in a text before it is split into words."""
        added: dict[int, AddedToken] = self._backend.get_added_tokens_decoder()
        return added

    @cached_property
    def table(self) -> TokenTable:
        """Texts and bytes of all tokens."""
        return TokenTable.build(self._backend, self.special_ids)

    def has_token(self, token: int) -> bool:
        """Whether the vocabulary has this id."""
        return 0 <= token < self.vocab_size and self.table.texts[token] is not None

    def prepare(self) -> None:
        """Builds what the first request would otherwise wait for, along with other streams."""
        self._continuing  # noqa: B018  And with it what it is made from.
        if self.table.byte_fallback is None:
            self.visible_bytes(skip_special_tokens=True)
        else:
            self.fallback_pieces(skip_special_tokens=True)

    def visible_bytes(self, skip_special_tokens: bool) -> TokenBytes:
        """TokenTable.visible_bytes, made once."""
        if skip_special_tokens not in self._visible_bytes:
            table = self.table.visible_bytes(skip_special_tokens)
            self._visible_bytes[skip_special_tokens] = table
        return self._visible_bytes[skip_special_tokens]

    def fallback_pieces(self, skip_special_tokens: bool) -> list[str | int | None]:
        """TokenTable.fallback_pieces, made once."""
        if skip_special_tokens not in self._fallback_pieces:
            pieces = self.table.fallback_pieces(skip_special_tokens)
            self._fallback_pieces[skip_special_tokens] = pieces
        return self._fallback_pieces[skip_special_tokens]

    @cached_property
    def _put_in_front(self) -> list[int]:
        """The token that tokenizer.json's own post-processor puts in front, or none."""
        ids: list[int] = self._backend.encode("", add_special_tokens=True).ids
        return ids[:1]

    @cached_property
    def _plain(self) -> Backend:
        """The backend for text whose special tokens aren't parsed: the switch is part of a
        backend's state, so one backend can't serve both at once."""
        backend = sharing_model(self._backend)
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def _continuing(self) -> Backend:
        """The backend for plain text that isn't a prompt's beginning."""
        steps = deepcopy(self._plain.pre_tokenizer)
        marks = [step for step in _flat(steps) if getattr(step, "prepend_scheme", "") == "first"]
        if not marks:
            return self._plain
        for step in marks:
            step.prepend_scheme = "never"
        backend = sharing_model(self._plain)
        backend.pre_tokenizer = steps
        backend.encode_special_tokens = True
        return backend

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        """A text that begins with BOS gets no second one."""
        bos = self.bos_token_id
        if not self.add_bos or bos is None:
            return ids
        if self._put_in_front == [bos]:
            return ids[1:] if ids[1:2] == [bos] else ids
        return ids if ids[:1] == [bos] else [bos, *ids]


def _flat(steps: Any) -> list[Any]:
    """A pre-tokenizer's steps: those of a Sequence, which may hold others, or itself."""
    if isinstance(steps, Sequence):
        inner: Any = steps  # Its stub doesn't know that it can be iterated.
        return [flat for step in inner for flat in _flat(step)]
    return [] if steps is None else [steps]


@contextmanager
def _library_errors() -> Iterator[None]:
    """What the library raises for a text is InvalidRequest. Where a tokenizer.json is broken in
    ways that only show with some text, that is a panic of Rust, which is no Exception."""
    try:
        yield
    except InvalidRequest:
        raise
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text is not valid Unicode: a lone surrogate at character {error.start}"
        ) from None
    except TypeError:
        raise InvalidRequest("the text is not valid Unicode: it holds lone surrogates") from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise InvalidRequest(
            f"the model's tokenizer.json can't handle this text: {str(error)[:200]}"
        ) from None


def _encoded(backend: Backend, text: str, add_special: bool) -> Encoding:
    """The text's tokens. Of the library's calls only those for several texts let go of the lock,
    and take longer to begin."""
    if len(text) < LONG_TEXT:
        return backend.encode(text, add_special_tokens=add_special)
    text.encode()  # Tells a lone surrogate's place, as the other call does.
    return backend.encode_batch_fast([text], add_special_tokens=add_special)[0]


def _may_have_more(text: str, tokens: int) -> bool:
    """False: so many tokens are enough for a text, whose bytes are a token each at worst."""
    most = max(tokens, PIECE)
    return 4 * len(text) > most and len(text.encode()) > most


def _check_count(backend: Backend, text: str, most: int) -> None:
    """Refuses a text whose pieces have more tokens than `most`.

    A cut adds a few tokens at its place, or takes some away; so `most` should be well above what
    would be accepted.
    """
    for place, count in _counted(backend, text):
        if count > most:
            raise InvalidRequest(
                f"the prompt has more than {most} tokens: its first {place} of {len(text)} "
                f"characters have {count}",
                param="prompt",
                code="context_length_exceeded",
            )


def _part(backend: Backend, text: str, tokens: int, *, from_end: bool = False) -> str:
    """The beginning or the end of a text that has more than twice so many tokens, or all of it.
    Where it was cut, its tokens may differ from the text's: what is kept of them is far from there.
    """
    if not _may_have_more(text, 2 * tokens):
        return text
    for place, count in _counted(backend, text, from_end=from_end):
        if count > 2 * tokens:
            return text[place:] if from_end else text[:place]
    return text


def _counted(backend: Backend, text: str, *, from_end: bool = False) -> Iterator[tuple[int, int]]:
    """Places further and further from the beginning, or from the end, and how many tokens there
    are up to there.  Words stay whole where they can: a tokenizer may know a long one as one."""
    count = 0
    begin, end = 0, len(text)
    while begin < end:
        if end - begin <= PIECE:
            place = begin if from_end else end
        elif from_end:
            place = text.find(" ", end - PIECE, end - PIECE // 2)
            place = end - PIECE if place < 0 else place
        else:
            place = text.rfind(" ", begin + PIECE // 2, begin + PIECE)
            place = begin + PIECE if place < 0 else place
        piece = text[place:end] if from_end else text[begin:place]
        count += len(backend.encode_batch_fast([piece], add_special_tokens=False)[0])
        begin, end = (begin, place) if from_end else (place, end)
        yield place, count


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """What is left of two lengths when the longer one is cut until both fit; then both alike."""
    if first + second <= room:
        return first, second
    if not second:
        return min(first, room), 0
    less, more = sorted((first, second))
    more = max(less, room - less)
    if less + more > room:
        less, more = room // 2, room - room // 2
    return (less, more) if first <= second else (more, less)


def load_backend(content: bytes) -> Backend:
    """Raises UnsupportedModel if the bytes aren't a tokenizer.json."""
    try:
        backend = Backend.from_buffer(content)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics, which are not
        raise UnsupportedModel(f"tokenizer.json can't be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None  # For training: the same text would become other tokens.
    return backend


def sharing_model(backend: Backend) -> Backend:
    """Another backend that encodes as this one does and whose switches are its own.

    The vocabulary is shared: that takes a tenth of the time of reading tokenizer.json again, and no
    memory.
    """
    other = Backend(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (value := getattr(backend, part)) is not None:
            setattr(other, part, value)
    added = backend.get_added_tokens_decoder()
    other.add_tokens([token for _, token in sorted(added.items())])
    return other


def _check_ids(ids: list[int]) -> None:
    if ids and not 0 <= min(ids) <= max(ids) <= MAX_ID:
        raise InvalidRequest(f"token ids must lie between 0 and {MAX_ID}")
