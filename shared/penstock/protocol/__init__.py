"""The messages between processes: msgspec structs, one file per receiver.

from_frontend  front end -> engine core     to_frontend  engine core -> front end
from_worker    worker    -> engine core     to_worker    engine core -> worker
live           rows of the live view, which to_frontend carries

Each file ends in the tagged union that its receiver decodes; a frame that doesn't decode ends the
session.  Adding a field with a default keeps a message readable by older peers; anything else
means a new entry in `PROTOCOL_VERSIONS`.  No message carries a method name or a pickled object.
"""

PROTOCOL_VERSIONS: tuple[int, ...] = (2,)
"""Versions that this build speaks, newest first. Hello offers them; the engine picks one."""
