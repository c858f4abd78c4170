"""The messages between processes: msgspec structs, one file per direction.

    from_frontend  front end -> engine core     to_frontend  engine core -> front end
    from_worker    worker    -> engine core     to_worker    engine core -> worker
    worker_resources  the part of to_worker about grammars, media and adapters
    live           rows of the live view, which to_frontend carries
    between_workers  worker -> worker of another engine core, for KV blocks
    from_supervisor, to_supervisor  lines of JSON between gateways and the supervisor, about models

Each of the first four files ends with the tagged union that its receiver decodes. A frame that
doesn't decode ends the session. A message stays readable for older peers if new fields have
defaults; any other change needs a new entry in `PROTOCOL_VERSIONS`. No message carries a method
name or a pickled object.
"""

PROTOCOL_VERSIONS: tuple[int, ...] = (2,)
"""Versions that this build supports, newest first. Hello offers them, and the engine core picks
one."""
