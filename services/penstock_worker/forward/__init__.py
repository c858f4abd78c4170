"""Ways to compute a step, by name. Imported when chosen: a missing library breaks only its own."""

from __future__ import annotations

from importlib import import_module

from penstock import logs
from penstock.errors import StartupError
from penstock.model_config import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.interface import Forward, Recipe, Unable
from penstock_worker.parallel.ranks import ALONE, Ranks

log = logs.get(__name__)

_MODULES = {
    "cpu": "penstock_worker.forward.cpu",
    "reference": "penstock_worker.forward.reference",
}
"""Fastest first: `auto` takes the first that can serve the model here.  Each module has
`recipe(prepared, setup, threads, ranks) -> Recipe`, which raises ImportError where its kernels are
missing and Unable where they can't run this model."""


def choose(prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE) -> Recipe:
    """The recipe that `setup` asks for. Raises StartupError when it can't be."""
    name = setup.attention_backend
    if name == "auto":
        return _fastest(prepared, setup, threads, ranks)
    if name not in _MODULES:
        raise StartupError(
            f"attention_backend is {name!r}; allowed are auto, {', '.join(_MODULES)}"
        )
    try:
        return _recipe(name, prepared, setup, threads, ranks)
    except (ImportError, Unable) as error:
        raise StartupError(f"attention backend {name} can't be used: {error}") from error


def _fastest(prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks) -> Recipe:
    reasons = []
    for name in _MODULES:
        try:
            recipe = _recipe(name, prepared, setup, threads, ranks)
        except (ImportError, Unable) as error:
            reasons.append(f"{name}: {error}")
            continue
        if reasons:
            log.warning("a slower backend is used", backend=name, reason="; ".join(reasons))
        return recipe
    raise StartupError(f"no attention backend can be used ({'; '.join(reasons)})")


def _recipe(name: str, prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks) -> Recipe:
    module = import_module(_MODULES[name])
    found: Recipe = module.recipe(prepared, setup, threads, ranks)
    return found


__all__ = ["Forward", "Recipe", "Unable", "choose"]
