"""Finds a model's family by name: first among the built-in ones, then among those of plug-ins.

There are more than a hundred modules of families. A process that reads a prepared model imports
only the one that its manifest names.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from penstock.config import plugins
from penstock.config.bundled import BUNDLED
from penstock.config.plugins import BrokenPlugin, Plugin
from penstock.errors import StartupError
from penstock.families.family import Family

_KNOWN: dict[str, Family] = {}
"""Families whose modules were named, by their names."""
_PACKAGES = ("penstock.families", *BUNDLED[plugins.FAMILIES])


def know_family(name: str, module: str) -> None:
    """Imports the family of a prepared model from the module that defines it. Does nothing where
    there is no such module, or where it defines another: `family_named` looks everywhere then."""
    if name in _KNOWN or module.rpartition(".")[0] not in _PACKAGES:
        return
    try:
        defined = vars(import_module(module)).values()
    except ModuleNotFoundError:
        return
    _KNOWN.update((each.name, each) for each in defined if _is_family(each, name))


def _is_family(value: object, name: str) -> bool:
    return isinstance(value, Family) and value.name == name


def family_named(name: str) -> Family | None:
    """The family that ModelConfig.architecture names; None if neither we nor a plug-in have it."""
    if name in _KNOWN:
        return _KNOWN[name]
    return served().FAMILIES.get(name) or _plugged().get(name)


def served() -> ModuleType:
    """Returns the module with all built-in families, which are imported then."""
    return import_module("penstock.families.served")


def served_family(name: str) -> Family:
    """The family of a prepared model. Raises StartupError if it was a plug-in's, and the plug-in
    isn't installed any more."""
    family = family_named(name)
    if family is None:
        raise StartupError(f"the model's family {name!r} is neither built in nor a plug-in's")
    return family


def family_of_class(name: str) -> Family | None:
    """The family whose models have this class in config.json (`architectures`); None if no family
    has."""
    if name in served().HUB_CLASSES:
        return served().HUB_CLASSES[name]
    return next((each for each in _plugged().values() if name in each.hub_classes), None)


def family_of_gguf(name: str) -> Family | None:
    """The family whose GGUF files have this `general.architecture`; None if no family has."""
    if name in served().GGUF_ARCHITECTURES:
        return served().GGUF_ARCHITECTURES[name]
    plugged = _plugged().values()
    return next((each for each in plugged if name in (each.gguf, *each.gguf_also)), None)


def package_of(name: str) -> str:
    """Name and version of the package whose plug-in is this family; empty for a built-in one."""
    if name in _KNOWN or name in served().FAMILIES:
        return ""
    return next((each.package for each in _families() if each.value.name == name), "")


def _plugged() -> dict[str, Family]:
    return {each.value.name: each.value for each in _families()}


@cache
def _families() -> tuple[Plugin[Family], ...]:
    """The families of all installed plug-ins that can be used. The log names the others, and why
    they can't."""
    found: list[Plugin[Family]] = []
    for plugin in plugins.installed_plugins(plugins.FAMILIES):
        try:
            found.append(Plugin(plugin.name, plugin.package, _checked(plugin, found)))
        except BrokenPlugin as error:
            plugins.leave_out(plugins.FAMILIES, error)
    return tuple(found)


def _checked(plugin: Plugin[object], others: list[Plugin[Family]]) -> Family:
    family, whose = plugin.value, f"the plug-in {plugin.name} of {plugin.package}"
    if not isinstance(family, Family):
        raise BrokenPlugin(f"{whose} is {family!r}, and not a Family")
    taken = {**served().FAMILIES, **{each.value.name: each.value for each in others}}
    if family.name in taken:
        raise BrokenPlugin(f"{whose}: the family {family.name} already exists")
    classes = {name for each in taken.values() for name in each.hub_classes}
    if not classes.isdisjoint(family.hub_classes):
        raise BrokenPlugin(f"{whose}: {family.hub_classes[0]} already has a family")
    return family
