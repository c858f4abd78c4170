"""A client in a process of its own that sends bodies from files, one after the other.

    python -m loadtest.sent_once

For each line with a JSON object (url, key, file, patience in seconds) it writes one: status of the
answer (0: none in time), seconds until its last byte, bytes, and how it begins if it isn't 200.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BEGINNING = 200
"""Characters of an answer that are told."""


def sent(asked: dict[str, Any]) -> dict[str, Any]:
    """What came back."""
    place = urlsplit(asked["url"])
    headers = {
        "authorization": f"Bearer {asked['key']}",
        "content-type": "application/json",
    }
    body = Path(asked["file"]).read_bytes()
    begun = time.monotonic()
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=1.0)
    until = begun + asked["patience"]
    status, received, first = 0, 0, b""
    try:
        connection.connect()
        connection.sock.settimeout(asked["patience"])
        try:
            connection.request("POST", place.path, body, headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # It was refused before it had come.
        connection.sock.settimeout(max(0.1, until - time.monotonic()))
        response = connection.getresponse()
        part = first = response.read1(65_536)
        received = len(first)
        while part and time.monotonic() < until:
            part = response.read1(1 << 20)
            received += len(part)
        status = 0 if part else response.status
    except (OSError, http.client.HTTPException) as error:
        first = type(error).__name__.encode()
    finally:
        connection.close()
    said = "" if status == 200 else first[:BEGINNING].decode(errors="replace")
    return {
        "status": status,
        "seconds": time.monotonic() - begun,
        "received": received,
        "said": said,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(sent(json.loads(line))), flush=True)
