"""Has engine cores replace a model's weights, and waits until they have."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from penstock.client.control import all_able
from penstock.client.session import EngineSession
from penstock.errors import (
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    RequestFailed,
    UnsupportedModel,
)
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import MAX_CALL_SECONDS
from penstock.protocol.from_frontend import ReplaceWeights

DEFAULT_SECONDS = 60.0
"""Seconds that requests that have begun may take to end."""
LOADING = 600.0
"""Seconds that loading may take beyond that."""

MOST_TOLD = 4
"""Engine cores of which an error tells."""

ChangeMode = Literal["wait", "abort"]


async def replace_weights(
    sessions: Sequence[EngineSession],
    source: str | os.PathLike[str],
    *,
    mode: ChangeMode = "wait",
    timeout: float | None = None,
    cache_dir: str | None = None,
) -> None:
    """Returns once every engine core's workers have loaded the weights of `source`: a folder in the
    hub's format, a .gguf file, or a name on the hub.

    mode: whether requests that have begun are waited for, or end as they are.  timeout: seconds
    that the former may take; see DEFAULT_SECONDS.
    Raises InvalidRequest for what are no other weights of the served model; EngineUnavailable;
    DeadlineExceeded, and RequestFailed where they can't be loaded: the former ones stay.
    """
    if mode not in get_args(ChangeMode):
        raise InvalidRequest(
            f"mode is {str(mode)[:40]!r}; allowed: {', '.join(get_args(ChangeMode))}; running "
            "requests can't continue with other weights",
            param="mode",
        )
    seconds = DEFAULT_SECONDS if timeout is None else timeout
    if not 0 < seconds <= MAX_CALL_SECONDS:
        raise InvalidRequest(
            f"timeout is {seconds:g}; allowed: more than 0, up to {MAX_CALL_SECONDS:g} s",
            param="timeout",
        )
    connected = all_able(sessions, lambda welcome: welcome.replaces, "can't replace its weights")
    welcome = connected[0].welcome
    text_only = welcome is not None and welcome.media is None
    overrides = "" if welcome is None else welcome.overrides
    folder, model = await asyncio.to_thread(
        _prepared, os.fspath(source), cache_dir, text_only, overrides
    )
    asked = [_asked(each, folder, model, mode == "abort", seconds) for each in connected]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    failed = [
        (session.endpoint, answer)
        for session, answer in zip(connected, answers, strict=True)
        if isinstance(answer, BaseException)
    ]
    if failed and len(failed) < len(connected):
        raise RequestFailed(_divided(len(connected), failed))
    for _, error in failed:
        raise error


def _divided(count: int, failed: Sequence[tuple[str, BaseException]]) -> str:
    """Returns the error's text if some of so many engine cores have other weights than the rest."""
    errors = "; ".join(f"{endpoint}: {error}" for endpoint, error in failed[:MOST_TOLD])
    return (
        f"{count - len(failed)} of {count} engine cores have the new weights; until the others "
        f"have them too, answers use either: {errors}"
    )


def _prepared(
    source: str, cache_dir: str | None, text_only: bool, overrides: str
) -> tuple[Path, PreparedModel]:
    """overrides: of the model's own settings, as those that are replaced have them. Raises
    InvalidRequest."""
    from penstock.prepare import load_manifest, prepare

    try:
        folder = prepare(
            source, cache_dir=cache_dir, language_model_only=text_only, overrides=overrides
        )
        return folder, load_manifest(folder)
    except (ModelNotFound, UnsupportedModel) as error:
        raise InvalidRequest(str(error), param="model_path") from None


async def _asked(
    session: EngineSession, folder: Path, model: PreparedModel, abort: bool, seconds: float
) -> None:
    number, done = session.calls.begin()
    try:
        if not session.send(ReplaceWeights(number, str(folder), model, abort, seconds)):
            raise EngineUnavailable("there is no session with an engine core at the moment")
        await asyncio.wait_for(done, seconds + LOADING)
    except InvalidRequest as error:  # Of a call, it would be the method.
        raise InvalidRequest(error.message, param="model_path") from None
    except TimeoutError:
        raise EngineUnavailable("the workers haven't loaded the weights yet") from None
    finally:
        session.calls.forget(number)
