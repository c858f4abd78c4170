"""Earlier layouts of the database, and the steps from each to the next."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, inspect, text

from penstock_gateway.storage import tables
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


def _add_column(connection: Connection, table: str, column: str, kind: str) -> None:
    known = {each["name"] for each in inspect(connection).get_columns(table)}
    if column not in known:
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} {kind}"))


def _sizes_of_responses(connection: Connection) -> None:
    """Layout 2 has the bytes of each kept response, so that they can be bounded."""
    _add_column(connection, "penstock_responses", "bytes", "BIGINT NOT NULL DEFAULT 0")
    # Characters, not bytes: nearly right for what is there already, and cheap.
    connection.execute(
        text("UPDATE penstock_responses SET bytes = length(items) + length(response)")
    )


def _origins_of_answers(connection: Connection) -> None:
    """Layout 3 says of responses in the background what answer was shown, for it to be gone on
    with."""
    _add_column(connection, "penstock_background", "origin", "VARCHAR(128) DEFAULT '' NOT NULL")


def _times_of_postponed(connection: Connection) -> None:
    """Layout 4 says of responses in the background when they may be taken again."""
    _add_column(connection, "penstock_background", "not_before", "FLOAT DEFAULT 0 NOT NULL")


def _indices_of_queries(connection: Connection) -> None:
    """Layout 5 has indices for what is asked at each request and by each process, however many rows
    there are."""
    for index in (*tables.responses.indexes, *tables.files.indexes, *tables.batches.indexes):
        index.create(connection, checkfirst=True)
    for replaced in ("penstock_responses_by_age", "penstock_files_by_owner"):
        connection.execute(text(f"DROP INDEX IF EXISTS {replaced}"))


_STEPS: dict[int, Callable[[Connection], None]] = {
    1: _sizes_of_responses,
    2: _origins_of_answers,
    3: _times_of_postponed,
    4: _indices_of_queries,
}
"""Steps to the next layout, by the layout that each begins with."""
