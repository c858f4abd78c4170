"""From the layouts of databases that earlier versions made to today's."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, inspect, text

from penstock_gateway.storage.tables import VERSION


def bring_up(connection: Connection, version: int) -> bool:
    """Changes a database of an earlier layout, within the caller's transaction. False: it can't be
    brought to today's."""
    if version not in _STEPS:
        return version == VERSION
    for step in range(version, VERSION):
        _STEPS[step](connection)
    connection.execute(text("UPDATE penstock_layout SET version = :new"), {"new": VERSION})
    return True


def _sizes_of_responses(connection: Connection) -> None:
    """Layout 2 has the bytes of each kept response, so that they can be bounded."""
    known = {column["name"] for column in inspect(connection).get_columns("penstock_responses")}
    if "bytes" not in known:
        connection.execute(
            text("ALTER TABLE penstock_responses ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0")
        )
    # Characters, not bytes: nearly right for what is there already, and cheap.
    connection.execute(
        text("UPDATE penstock_responses SET bytes = length(items) + length(response)")
    )


_STEPS: dict[int, Callable[[Connection], None]] = {1: _sizes_of_responses}
"""Steps to the next layout, by the layout that each begins with."""
