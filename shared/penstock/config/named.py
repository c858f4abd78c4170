"""Settings that name something built in, or something that a plug-in brings."""

from __future__ import annotations

from collections.abc import Collection

from penstock.config.plugins import plugin_names


def check_named(field: str, value: str, built_in: Collection[str], group: str) -> None:
    """Raises ValueError for a name of neither. Imports no plug-in: whoever uses it does."""
    if value in built_in:
        return
    brought = plugin_names(group)
    if value not in brought:
        raise ValueError(f"{field} is {value!r}; allowed: {', '.join([*built_in, *brought])}")
