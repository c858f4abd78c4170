"""The certificates that httpx trusts are read once for a process.

`httpx.get` and its like make a client for each call, and each client reads the 140 certificates of
certifi anew: 40 ms of a processor, where the request itself takes one or two. A test that looks
again and again whether a system is ready would do little else.
"""

from __future__ import annotations

import functools
import os
import ssl
import sys
from typing import Any

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""They name other certificates; each value of them has a context."""


def use() -> None:
    """From now on, if httpx has been imported. Who asks for something other than the certificates
    that everybody trusts gets a context of its own, as before."""
    transports: Any = sys.modules.get("httpx._transports.default")
    if transports is None or hasattr(transports.create_ssl_context, "__wrapped__"):
        return
    create = transports.create_ssl_context

    @functools.cache
    def everybodys(*_: str | None) -> ssl.SSLContext:
        context: ssl.SSLContext = create()
        return context

    @functools.wraps(create)
    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None or not trust_env:
            own: ssl.SSLContext = create(verify=verify, cert=cert, trust_env=trust_env)
            return own
        return everybodys(*map(os.environ.get, VARIABLES))

    transports.create_ssl_context = context
