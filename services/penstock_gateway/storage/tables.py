"""The tables, of files, batches, responses and conversations. Times are Unix seconds."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

from penstock_gateway.storage.records import ENDED

VERSION = 5
"""Version of this layout. An older one is brought to it (`database.py`), any other is refused."""


class StoredName(TypeDecorator[str]):
    """A text that a client may have written as it is. NUL, which PostgreSQL's texts can't hold, is
    U+FFFD: so nothing is found by it."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: object) -> str | None:
        return None if value is None else value.replace("\0", "\ufffd")


metadata = MetaData()

layout = Table(
    "penstock_layout",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
)

identity = Table(
    "penstock_identity",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", StoredName(64), nullable=False),
)
"""name: drawn when the tables are made, so that a folder can say whose it is. A copy of a database
has the same one."""

files = Table(
    "penstock_files",
    metadata,
    Column("id", StoredName(64), primary_key=True),
    Column("owner", StoredName(64), nullable=False),
    Column("purpose", StoredName(32), nullable=False),
    Column("filename", StoredName, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, index=True),
    Index("penstock_files_of_owner", "owner", "created_at", "id", "bytes"),
)
"""owner: a tenant.  The index has all that is counted of an owner: no row is read for it."""

batches = Table(
    "penstock_batches",
    metadata,
    Column("id", StoredName(64), primary_key=True),
    Column("owner", StoredName(64), nullable=False),
    Column("key_digest", StoredName(64), nullable=False),
    Column("endpoint", StoredName(64), nullable=False),
    Column("input_file_id", StoredName(64), nullable=False),
    Column("completion_window", StoredName(16), nullable=False),
    Column("metadata", Text, nullable=False),
    Column("status", StoredName(16), nullable=False, index=True),
    Column("errors", Text, nullable=False),
    Column("output_file_id", StoredName(64)),
    Column("error_file_id", StoredName(64)),
    Column("keep_seconds", BigInteger, nullable=False),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("in_progress_at", BigInteger),
    Column("finalizing_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("failed_at", BigInteger),
    Column("expired_at", BigInteger),
    Column("cancelling_at", BigInteger),
    Column("cancelled_at", BigInteger),
    Column("runner", StoredName(64), nullable=False),
    Column("held_until", Float, nullable=False),
    Index("penstock_batches_by_owner", "owner", "created_at", "id"),
)
"""key_digest: the SHA-256 of the API key that made it, empty where there are no keys.  metadata,
errors: JSON.  keep_seconds: how long its results are kept.  runner, held_until: which process works
on it, and a value that changes when it says so again (`holds.py`)."""

_open = batches.c.status.not_in(ENDED)
Index(
    "penstock_batches_open",
    batches.c.created_at,
    batches.c.id,
    postgresql_where=_open,
    sqlite_where=_open,
)
"""Of those that haven't ended: few, of many."""

answers = Table(
    "penstock_answers",
    metadata,
    Column("batch_id", StoredName(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("ok", Boolean, nullable=False),
    Column("line", Text, nullable=False),
)
"""Lines of results, as they will stand in a file, of batches that haven't ended.  number: of the
line in the batch's file, from 0: the key that makes a second answer to it impossible."""

responses = Table(
    "penstock_responses",
    metadata,
    Column("owner", StoredName(64), primary_key=True),
    Column("id", StoredName(160), primary_key=True),
    Column("previous_id", StoredName(160)),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    Column("items", Text, nullable=False),
    Column("response", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    Index("penstock_responses_of_owner", "owner", "created_at", "id", "bytes"),
)
"""items: a JSON list, what the request brought itself.  response: as it was answered.  bytes: of
both. A client may choose an id, so it is the owner's only.  The index as in `files`."""

conversations = Table(
    "penstock_conversations",
    metadata,
    Column("owner", StoredName(64), primary_key=True),
    Column("id", StoredName(64), primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("used_at", Float, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    Column("metadata", Text, nullable=False),
    Column("next_place", BigInteger, nullable=False),
    Column("item_count", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Index("penstock_conversations_by_use", "owner", "used_at"),
)
"""metadata: JSON.  next_place: of the next item.  item_count, bytes: of its items."""

conversation_items = Table(
    "penstock_conversation_items",
    metadata,
    Column("owner", StoredName(64), primary_key=True),
    Column("conversation", StoredName(64), primary_key=True),
    Column("place", BigInteger, primary_key=True, autoincrement=False),
    Column("id", StoredName(160), nullable=False),
    Column("response", StoredName(160), nullable=False),
    Column("item", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Index("penstock_conversation_items_by_id", "owner", "conversation", "id"),
)
"""place: the order.  response: which brought it, empty where a client added it itself.  item: JSON,
as clients see it."""

background = Table(
    "penstock_background",
    metadata,
    Column("owner", StoredName(64), primary_key=True),
    Column("id", StoredName(160), primary_key=True),
    Column("key_digest", StoredName(64), nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", Float, nullable=False, index=True),
    Column("runner", StoredName(64), nullable=False),
    Column("held_until", Float, nullable=False),
    Column("origin", StoredName(128), nullable=False, server_default=""),
    Column("not_before", Float, nullable=False, server_default="0"),
)
"""Responses in the background that haven't ended, each beside its row in `responses`, which clients
see.  body: of the request that answers it, as JSON.  runner, held_until: as of a batch.  origin: of
the answer of which clients have seen a part (generate.replay); empty: of none.  not_before: when
work that a process gave back may be taken again."""
