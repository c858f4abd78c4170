"""A request's prompt whose middle is to be filled in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from penstock.errors import Field, InvalidRequest
from penstock.text.fim import fim_tokens
from penstock_gateway.request.fields import GenerateFields, Text
from penstock_gateway.request.tokenising import (
    MAX_CHARACTERS_PER_TOKEN,
    encode,
    off_the_loop,
)

if TYPE_CHECKING:
    from penstock_gateway.models.backend import EngineInfo


class FIMFields(Protocol):
    """Fields that can't be given with a suffix, and the suffix."""

    @property
    def suffix(self) -> str | None: ...
    @property
    def echo(self) -> bool | None: ...
    @property
    def truncate_prompt_tokens(self) -> int | None: ...


def check_fim(request: FIMFields) -> None:
    """Raises InvalidRequest for fields that ask for a prompt without a suffix."""
    if not request.suffix:
        return
    for field, value in (
        ("echo", request.echo or None),
        ("truncate_prompt_tokens", request.truncate_prompt_tokens),
    ):
        if value is not None:
            raise InvalidRequest(f"{field} can't be combined with ", Field("suffix"), param=field)


Body = TypeVar("Body", bound=GenerateFields)


async def fim_prompt(
    before: str | list[int],
    suffix: str,
    request: Body,
    engine: EngineInfo,
    *,
    parse_special: bool = False,
    add_special: bool = True,
    field: str = "suffix",
) -> tuple[list[int], Body]:
    """Token ids of a prompt whose middle is to be filled in, and the request with the tokens that
    end a middle among its stop_token_ids, unless it ignores EOS.

    before: what stands before the gap, text or token ids.  parse_special: whether texts of special
    tokens in it are parsed; else they are plain text, as in the suffix.  add_special: BOS goes in
    front if the model wants it.  field: the request's name for the suffix.  Raises InvalidRequest,
    also for a model that can't do this.
    """
    tokenizer, limit = engine.text.tokenizer, engine.welcome.limits.max_model_len
    tokens = fim_tokens(tokenizer)
    if tokens is None:
        raise InvalidRequest(
            f"{field}: this model's vocabulary has no tokens for filling in the middle; it must be"
            " null or empty",
            param=field,
            code="unsupported_value",
        )

    def run(most: int) -> list[int]:
        front = tokenizer.encode("", add_special=add_special)
        if isinstance(before, str):
            first = tokenizer.encode(
                before, parse_special=parse_special, add_special=False, most=most
            )
        else:
            first = before
        after = tokenizer.encode(
            suffix, parse_special=False, add_special=False, begins=False, most=most
        )
        return tokens.join(front, first, after)

    characters = len(suffix) + (len(before) if isinstance(before, str) else 0)
    ids = await encode(run, characters, limit)
    if request.ignore_eos:
        return ids, request
    stops = sorted({*(request.stop_token_ids or ()), *tokens.ends})
    return ids, msgspec.structs.replace(request, stop_token_ids=stops)


REPOSITORY, FILE = "repository", "file"
"""Names for a request that has none."""


class OtherFile(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of another file than the one that is written in. Fields that are unknown here, as the
    time at which an editor took it, are skipped."""

    text: str
    filename: Text = None


async def with_files(
    prompt: list[int], files: Sequence[OtherFile], engine: EngineInfo, room: int
) -> tuple[list[int], int]:
    """A prompt of `fim_prompt`, and other files in front of it as its model was taught them, and
    how many there are: the last ones, as long as all has room.

    room: tokens.  A model whose vocabulary has no tokens for that sees them as text."""
    tokenizer = engine.text.tokenizer
    tokens = fim_tokens(tokenizer)
    marks = None if tokens is None else tokens.file
    front = tokenizer.encode("", add_special=True)
    own: list[int] = []

    def ids_of(text: str) -> list[int]:
        return tokenizer.encode(text, parse_special=False, add_special=False)

    begins = len(front)
    if marks is not None:
        front = [*front, marks[0], *ids_of(f"{REPOSITORY}\n")]
        own = [marks[1], *ids_of(f"{FILE}\n")]
    left = room - len(prompt) - len(front) - len(own)
    pieces: list[list[int]] = []
    for file in reversed(files):
        if len(file.text) > left * MAX_CHARACTERS_PER_TOKEN:
            break
        text = f"{file.filename or FILE}\n{file.text}"
        if marks is None:
            piece = await off_the_loop(partial(ids_of, f"{text}\n\n"), len(text))
        else:
            piece = [marks[1], *await off_the_loop(partial(ids_of, text), len(text))]
        left -= len(piece)
        if left < 0:
            break
        pieces.append(piece)
    if not pieces:
        return prompt, 0
    others = [token for piece in reversed(pieces) for token in piece]
    return [*front, *others, *own, *prompt[begins:]], len(pieces)
