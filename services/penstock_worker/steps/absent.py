"""What becomes of a request for a feature that this worker doesn't have: the one place of such
refusals. The engine core knows from Ready what a worker has, so it asks for none of these, unless a
frontend's message crosses with a worker that has just changed."""

from __future__ import annotations

from collections.abc import Collection

from penstock.protocol.from_worker import (
    AdapterFailed,
    FetchedKV,
    FoundKV,
    FromWorker,
    GrammarFailed,
    MediaFailed,
)
from penstock.protocol.to_worker import FetchKV, LookUpKV, NewSequence, SaveKV, ToWorker
from penstock.protocol.worker_resources import (
    CompileGrammar,
    DropAdapter,
    DropGrammar,
    DropMedia,
    LoadAdapter,
    LoadMedia,
    LoadMediaChunk,
)


def refusal(message: ToWorker) -> FromWorker | None:
    """Returns the answer to a message whose feature is missing; None: none is expected. Raises
    RuntimeError for one that no feature takes."""
    match message:
        case LoadMedia(name=name):
            return MediaFailed(name, no("media"), "unfit")
        case LoadAdapter(adapter=adapter):
            return AdapterFailed(adapter, no("adapters"))
        case CompileGrammar(grammar=grammar):
            return GrammarFailed(grammar, no("grammars"))
        case LookUpKV(fetch=fetch):
            return FoundKV(fetch, 0)
        case FetchKV(fetch=fetch):
            return FetchedKV(fetch, 0)
        case LoadMediaChunk() | DropMedia() | DropAdapter() | DropGrammar() | SaveKV():
            return None
    raise RuntimeError(f"{type(message).__name__} was not expected in this state")


def lacking(new: NewSequence, names: Collection[str], *, pools: bool) -> str | None:
    """Returns why a sequence can't be computed; None: it can.

    `names`: of the runner's features. `pools`: whether vectors are no feature here, but made of all
    sequences.
    """
    asked = {
        "adapters": bool(new.adapter),
        "grammars": new.grammar is not None,
        "word times": new.pooling is not None and not pools,
    }
    return next(
        (no(name) for name, is_asked in asked.items() if is_asked and name not in names), None
    )


def no(name: str) -> str:
    """Returns the refusal for a feature of this name."""
    return f"this worker has no {name}"
