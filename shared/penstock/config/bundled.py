"""What Penstock's own packages bring beyond the core, by the groups of plug-ins.

The core imports none of them: it finds them here, by name. Unlike plug-ins they come with Penstock
itself, so that `--plugins` says nothing of them.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from penstock.config.plugins import ENDPOINTS, FAMILIES

VISION_FAMILIES = "penstock.vision_families"
MMPROJ_KINDS = "penstock.mmproj_kinds"
"""Packages whose modules define some, as those of FAMILIES do. No plug-in brings any."""

GRAMMARS = "penstock.grammars"
"""What compiles grammars, a `GrammarCompiler` of the worker's. No plug-in brings one."""

RECEIPTS = "penstock.receipts"
"""What gives receipts with a key that is in a file. No plug-in brings it."""

MODEL_VIEWS = "penstock.model_views"
"""How other APIs show the list of models, at the paths of OpenAI's. No plug-in brings one."""

BUNDLED: dict[str, tuple[str, ...]] = {
    ENDPOINTS: (
        "penstock_dialects.anthropic.endpoint:routes",
        "penstock_dialects.anthropic.message_batches:routes",
        "penstock_dialects.llamacpp.completion:routes",
        "penstock_dialects.llamacpp.embedding:routes",
        "penstock_dialects.llamacpp.infill:routes",
        "penstock_dialects.llamacpp.props:routes",
        "penstock_dialects.ollama.endpoint:routes",
        "penstock_dialects.ollama.embed:routes",
        "penstock_dialects.ollama.models:routes",
        "penstock_platforms.cohere:routes",
        "penstock_platforms.tei:routes",
        "penstock_platforms.tgi.endpoint:routes",
        "penstock_platforms.sagemaker:routes",
        "penstock_receipts.endpoint:routes",
    ),
    FAMILIES: ("penstock_families",),
    VISION_FAMILIES: ("penstock_families.vision",),
    MMPROJ_KINDS: ("penstock_families.mmproj",),
    GRAMMARS: ("penstock_grammars.compiler:Compiler",),
    MODEL_VIEWS: ("penstock_dialects.anthropic.models:VIEW",),
    RECEIPTS: ("penstock_receipts.desk:kept_desk",),
}


def bundled(group: str) -> list[Any]:
    """Imports and returns what they bring to the group."""
    return [named(place) for place in BUNDLED[group]]


def defining(package: str, group: str, *, but: str) -> list[ModuleType]:
    """Imports and returns the modules of a package of the core and of those that bring more to the
    group, without their subpackages.  but: the module that asks."""
    from pkgutil import iter_modules  # Not above: few of those who ask for a part look for modules.

    packages = (package, *BUNDLED[group])
    names = [
        f"{each}.{found.name}"
        for each in packages
        for found in iter_modules(importlib.import_module(each).__path__)
        if not found.ispkg
    ]
    return [importlib.import_module(name) for name in names if name != but]


def named(place: str) -> Any:
    """Imports and returns what is at `module:name`."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
