"""Ways to compute a step, by name. Imported when chosen: a missing library breaks only its own."""

from __future__ import annotations

from importlib import import_module

import torch

from penstock import logs
from penstock.errors import StartupError
from penstock.model_config import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.device import compute_device
from penstock_worker.forward.interface import DeviceRecipe, Forward, Recipe, Unable
from penstock_worker.parallel.ranks import ALONE, Ranks

log = logs.get(__name__)

_MODULES = {
    "triton": "penstock_worker.forward.triton",
    "cpu": "penstock_worker.forward.cpu",
    "reference": "penstock_worker.forward.reference",
}
"""Fastest first: `auto` takes the first that can serve the model here.  Each module has
`recipe(prepared, setup, threads, ranks) -> Recipe`, which raises ImportError where its kernels are
missing and Unable where they can't run this model."""

_ON_DEVICE = ("triton",)
"""Of these, the ones that compute on a GPU."""


def choose(prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE) -> Recipe:
    """The recipe that `setup` asks for. Raises StartupError when it can't be."""
    name, device = setup.attention_backend, compute_device(setup)
    if name == "auto":
        return _fastest(prepared, setup, threads, ranks, _candidates(setup, device))
    if name not in _MODULES:
        raise StartupError(
            f"attention_backend is {name!r}; allowed are auto, {', '.join(_MODULES)}"
        )
    if setup.device == "cuda" and name not in _ON_DEVICE:
        raise StartupError(
            f"attention_backend {name} computes on the CPU, and device is 'cuda'; allowed are "
            f"auto, {', '.join(_ON_DEVICE)}"
        )
    try:
        return _recipe(name, prepared, setup, threads, ranks)
    except (ImportError, Unable) as error:
        raise StartupError(f"attention backend {name} can't be used: {error}") from error


def _candidates(setup: Setup, device: torch.device) -> list[str]:
    if device.type == "cpu":
        return [name for name in _MODULES if name not in _ON_DEVICE]
    return list(_ON_DEVICE if setup.device == "cuda" else _MODULES)


def _fastest(
    prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks, candidates: list[str]
) -> Recipe:
    reasons = []
    for name in candidates:
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


__all__ = ["DeviceRecipe", "Forward", "Recipe", "Unable", "choose"]
