"""Tokens with their places in the text, as Text Embeddings Inference and Text Generation Inference
answer /tokenize, and /decode, the way back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.text.tokenizer import Tokenizer
from penstock_gateway.generate.chunked_reply import JsonList, Pace
from penstock_gateway.http.operations import Operation, posting
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.fields import Flag, Text
from penstock_gateway.request.input_texts import check_count, named_prompt, texts_of
from penstock_gateway.request.sampling import check_ids
from penstock_gateway.request.tokenising import check_length, most_tokens, off_the_loop
from penstock_gateway.tokenize.text_endpoint import SOME, TextEndpoint

if TYPE_CHECKING:
    from penstock_gateway.service import Service

MOST_TOKENS = 1 << 18
"""Tokens of all inputs of a request."""


class LocatedToken(msgspec.Struct, frozen=True, gc=False):
    """special: one that the text doesn't hold.  start, stop: characters of the text; null of a
    special one."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class LocatedFields(Protocol):
    """Fields of a body that asks for them."""

    @property
    def inputs(self) -> str | list[str] | None: ...
    @property
    def add_special_tokens(self) -> bool | None: ...
    @property
    def prompt_name(self) -> str | None: ...


async def located_tokens(request: LocatedFields, engine: EngineInfo) -> list[bytes]:
    """The reply, as JSON in pieces: a list for each text; of a single text, where the model
    generates, its list alone, as Text Generation Inference has it. Raises InvalidRequest."""
    tokenizer, limit = engine.text.tokenizer, engine.welcome.limits.max_model_len
    alone = isinstance(request.inputs, str) and engine.welcome.pooling is None
    name, left = request.prompt_name, MOST_TOKENS
    prompt = "" if name is None else named_prompt(name, engine.welcome.pooling)
    lists, pace = JsonList(), Pace()
    for given in texts_of("inputs", "" if request.inputs is None else request.inputs):
        text = prompt + given
        check_length(len(text), limit)
        read = partial(
            _located, tokenizer, text, request.add_special_tokens is not False, most_tokens(limit)
        )
        found = await off_the_loop(read, len(text))
        left -= len(found)
        if left < 0:
            raise InvalidRequest(
                f"inputs has more than {MOST_TOKENS} tokens; at most so many are allowed in one"
                " request",
                param="inputs",
            )
        one = JsonList()
        for at in range(0, len(found), SOME):
            one.add(found[at : at + SOME])
            await pace.rest()
        if alone:
            return one.pieces()
        lists.add_written(one.pieces())
    return lists.pieces()


def _located(tokenizer: Tokenizer, text: str, add_special: bool, most: int) -> list[LocatedToken]:
    own = tokenizer.encode(text, add_special=False, most=most)
    whole = tokenizer.encode(text) if add_special else own
    places = [place for place in tokenizer.spans(text) if place is not None]
    around = len(whole) - len(own)
    begin = next((at for at in range(around + 1) if whole[at : at + len(own)] == own), 0)
    found = []
    for at, token in enumerate(whole):
        if begin <= at < begin + len(own):
            start, stop = places[at - begin]
            found.append(LocatedToken(token, text[start:stop], False, start, stop))
        else:
            found.append(LocatedToken(token, tokenizer.token_text(token), True, None, None))
    return found


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """ids: of a text, or a list of such lists.  skip_special_tokens: true by default."""

    ids: list[int | list[int]]
    skip_special_tokens: Flag = None
    model: Text = None


class Decode(TextEndpoint[DecodeRequest]):
    """Texts of token ids."""

    request_type = DecodeRequest

    async def answer(self, request: DecodeRequest, engine: EngineInfo, lease: MediaLease) -> Any:
        texts = []
        pace = Pace()
        for ids in _lists(request.ids):
            if ids:
                check_ids("ids", ids, engine.welcome.limits.vocab_size)
            decode = partial(
                engine.text.tokenizer.decode,
                ids,
                skip_special_tokens=request.skip_special_tokens is not False,
            )
            texts.append(await off_the_loop(decode, len(ids)))
            await pace.rest()
        return texts


def _lists(ids: list[int | list[int]]) -> list[list[int]]:
    """Raises InvalidRequest for a mixture, and for too many."""
    lists = [each for each in ids if isinstance(each, list)]
    if lists and len(lists) != len(ids):
        raise InvalidRequest(
            "ids mixes token ids and lists; allowed: a list of token ids, or a list of such lists",
            param="ids",
            code="invalid_type",
        )
    if lists:
        check_count("ids", len(lists))
    return lists or [[each for each in ids if isinstance(each, int)]]


DECODE: Operation = posting(
    "/decode",
    "Detokenize token ids (TEI)",
    DecodeRequest,
    list[str],
    tag="text",
    headers=(),
)


def decoding(service: Service) -> Any:
    """The route of /decode."""
    return DECODE.route(Decode(service))
