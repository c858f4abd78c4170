"""What the operator grants each tenant.

A tenant is all clients with the same API key; its name is the key's digest, `anonymous` without a
key.  Tenants' limits are in the gateways' file of API keys and come with each request; limits that
are listed here take precedence.

The text has the form `NAME:weight=3,max_requests=8,highest_priority=-5;NAME:...`,
where the name `*` stands for all that are not listed.
"""

from __future__ import annotations

from penstock.errors import StartupError
from penstock.protocol.common import GRANT_RANGES, Grant

ANYBODY = "*"
ANONYMOUS = "anonymous"
"""The configuration's name for the tenant that messages call the empty string."""


class Tenants:
    """The grants, by tenant."""

    def __init__(self, text: str = "") -> None:
        """Raises StartupError for text of another form, or a value out of its range."""
        self._grants: dict[str, Grant] = {}
        for entry in filter(None, text.split(";")):
            name, _, fields = entry.partition(":")
            if not name:
                raise StartupError(f"tenants: {entry!r} has no name")
            name = "" if name == ANONYMOUS else name
            if name in self._grants:
                raise StartupError(f"tenants: {entry!r} is listed twice")
            self._grants[name] = _grant(entry, fields)
        self._others = self._grants.pop(ANYBODY, Grant())

    def of(self, tenant: str, requested: Grant | None = None) -> Grant:
        """Returns the limits of `tenant`. requested: those that its request states, for a tenant
        that is not listed."""
        return self._grants.get(tenant) or requested or self._others


def _grant(entry: str, fields: str) -> Grant:
    values: dict[str, int] = {}
    for field in filter(None, fields.split(",")):
        key, _, value = field.partition("=")
        low, high = GRANT_RANGES.get(key, (1, 0))
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high or key in values:
            allowed = ", ".join(f"{k}={a} to {b}" for k, (a, b) in GRANT_RANGES.items())
            raise StartupError(f"tenants: {field!r} in {entry!r}; allowed, each once: {allowed}")
        values[key] = number
    return Grant(**values)
