"""Backends by name. Each is imported when it is chosen, so a missing library affects only its own
backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from penstock.config.plugins import ATTENTION_BACKENDS, named_plugin
from penstock.errors import StartupError
from penstock.model.config import TransformersConfig
from penstock.model.expert_places import parallel_places
from penstock.model.prepared_model import PreparedModel
from penstock.process import logs
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.device import computes_on_gpu
from penstock_worker.forward.interface import Recipe, Unable
from penstock_worker.parallel.ranks import ALONE, Ranks

log = logs.get(__name__)

_MODULES = {
    "triton": "penstock_worker.forward.triton",
    "cpu": "penstock_worker.forward.cpu.backend",
    "reference": "penstock_worker.forward.reference",
    "transformers": "penstock_worker.forward.transformers",
}
"""Fastest first: `auto` takes the first that can serve the model on this machine. Each module has
`recipe(prepared, setup, threads, ranks) -> Recipe`, which raises ImportError if its kernels are
missing and Unable if they can't run this model."""

_BY_TRANSFORMERS = "transformers"
"""The backend for models that no family describes, and for no others."""


_ON_DEVICE = ("triton",)
"""The backends that compute on a GPU."""


def backend_module(name: str) -> ModuleType:
    """Raises ImportError where its library is missing, KeyError for another name."""
    return import_module(_MODULES[name])


_DEALING = "cpu"
"""The backend whose ranks can hold whole experts."""


_PRECISE = "cpu"
"""The backend that has a choice of how finely it rounds what it multiplies."""


def _check_precision(name: str, setup: Setup) -> None:
    """Raises Unable for a backend that can't follow matmul_precision; StartupError for one on a
    GPU, in whose place a CPU is no answer."""
    if setup.matmul_precision == "medium" or name == _PRECISE:
        return
    reason = (
        f"matmul_precision is {setup.matmul_precision}, which the {_PRECISE} backend alone has;"
        f" allowed on {name} is medium, with dtype float32 for finer activations"
    )
    raise StartupError(reason) if name in _ON_DEVICE else Unable(reason)


def _check_expert_ranks(name: str, prepared: PreparedModel, setup: Setup, ranks: Ranks) -> None:
    """Raises StartupError for ranks that can't hold whole experts of the model; Unable for a
    backend whose ranks can't."""
    if not setup.expert_parallel:
        return
    if isinstance(prepared.config, TransformersConfig):
        raise StartupError("enable_expert_parallel is set; transformers' own code has one rank")
    parallel_places(prepared.decoder, ranks.place.tensor)
    if name != _DEALING:
        raise Unable(f"enable_expert_parallel is set, which the {_DEALING} backend alone has")


def _check_host_experts(name: str, setup: Setup) -> None:
    """Raises Unable for a backend without a GPU, whose experts could otherwise be in host
    memory."""
    if setup.cpu_experts != "off" and name not in _ON_DEVICE:
        raise Unable(
            f"cpu_experts is {setup.cpu_experts}, which is for a model on a GPU; on {name} all of "
            "it is on the CPU, and allowed is off"
        )


def chooses_torch(prepared: PreparedModel, setup: Setup) -> bool:
    """Returns whether `choose` begins with a backend that computes with torch. It may end with one
    in any case: the CPU kernels can't run every model, and reading some tensors takes torch."""
    if setup.attention_backend != "auto":
        return setup.attention_backend != _PRECISE
    if isinstance(prepared.config, TransformersConfig):
        return True
    return computes_on_gpu(setup)


def choose(prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks = ALONE) -> Recipe:
    """Returns the recipe that `setup` asks for. Raises StartupError if there is none.

    A name that isn't ours is a plug-in's, which computes on the CPU: never chosen by `auto`."""
    if setup.attention_backend not in ("auto", *_MODULES):
        return _plugged(prepared, setup, threads, ranks)
    found: Recipe = choose_among(_MODULES, prepared, setup, threads, ranks)
    return found


def _plugged(prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks) -> Recipe:
    name, flag = setup.attention_backend, "--attention-backend"
    plugin = named_plugin(ATTENTION_BACKENDS, name, flag, ("auto", *_MODULES))
    if setup.device == "cuda":
        raise StartupError(f"{flag} {name}: plug-ins compute on the CPU, and device is 'cuda'")
    make = getattr(plugin.value, "recipe", None)
    if make is None:
        raise StartupError(f"{flag} {name}: {plugin.package} has no function `recipe` there")
    try:
        _check_precision(name, setup)
        _check_expert_ranks(name, prepared, setup, ranks)
        _check_host_experts(name, setup)
        recipe = make(prepared, setup, threads, ranks)
    except Exception as error:
        raise StartupError(f"{flag} {name}: {plugin.package}: {error}") from error
    if not isinstance(recipe, Recipe):
        raise StartupError(
            f"{flag} {name}: {plugin.package} gives {recipe!r}, which isn't a Recipe"
        )
    return replace(recipe, backend=name, fingerprint=f"{plugin.package} {recipe.fingerprint}")


def choose_among(
    modules: Mapping[str, str],
    prepared: PreparedModel,
    setup: Setup,
    threads: int,
    ranks: Ranks = ALONE,
) -> Any:
    """Returns the recipe that `setup` asks for, among the given modules (by backend name, fastest
    first): whatever the chosen module's `recipe` returns. Raises StartupError if there is none."""
    name, on_gpu = setup.attention_backend, computes_on_gpu(setup)
    if name == "auto":
        found = {
            each: modules[each] for each in _candidates(modules, prepared, setup, on_gpu=on_gpu)
        }
        return _fastest(found, prepared, setup, threads, ranks)
    if name not in modules:
        raise StartupError(f"attention_backend is {name!r}; allowed are auto, {', '.join(modules)}")
    if setup.device == "cuda" and name not in _ON_DEVICE:
        raise StartupError(
            f"attention_backend {name} computes on the CPU, and device is 'cuda'; allowed are "
            f"auto, {', '.join(_ON_DEVICE)}"
        )
    try:
        _check_precision(name, setup)
        _check_expert_ranks(name, prepared, setup, ranks)
        _check_host_experts(name, setup)
        return import_module(modules[name]).recipe(prepared, setup, threads, ranks)
    except (ImportError, Unable) as error:
        raise StartupError(f"attention backend {name} can't be used: {error}") from error


def _candidates(
    modules: Mapping[str, str], prepared: PreparedModel, setup: Setup, *, on_gpu: bool
) -> list[str]:
    if setup.device == "cuda":
        return list(_ON_DEVICE)
    if isinstance(prepared.config, TransformersConfig):
        return [_BY_TRANSFORMERS]
    own = [name for name in modules if name != _BY_TRANSFORMERS]
    return own if on_gpu else [name for name in own if name not in _ON_DEVICE]


def _fastest(
    modules: Mapping[str, str], prepared: PreparedModel, setup: Setup, threads: int, ranks: Ranks
) -> Any:
    reasons = []
    for name, module in modules.items():
        try:
            _check_precision(name, setup)
            _check_expert_ranks(name, prepared, setup, ranks)
            _check_host_experts(name, setup)
            recipe = import_module(module).recipe(prepared, setup, threads, ranks)
        except (ImportError, Unable) as error:
            reasons.append(f"{name}: {error}")
            continue
        if reasons:
            log.warning("a slower backend is used", backend=name, reason="; ".join(reasons))
        return recipe
    raise StartupError(f"no attention backend can be used ({'; '.join(reasons)})")
