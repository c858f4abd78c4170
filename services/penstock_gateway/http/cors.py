"""Web pages of other origins, if the operator names them."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError

EXPOSED = (
    "x-request-id",
    "request-id",
    "retry-after",
    "server-timing",
    *(
        f"x-ratelimit-{part}-{what}"
        for part in ("limit", "remaining", "reset")
        for what in ("requests", "tokens")
    ),
)
"""Response headers that a page may read."""


def add_cors(app: FastAPI, config: GatewayConfig) -> None:
    """Adds nothing unless origins are named. Preflights are answered without a key: browsers send
    none with them, and they reach no endpoint."""
    origins = names("allowed_origins", config.allowed_origins)
    if not origins:
        return
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=names("allowed_methods", config.allowed_methods),
        allow_headers=names("allowed_headers", config.allowed_headers),
        allow_credentials=config.allow_credentials,
        expose_headers=EXPOSED,
    )


def names(setting: str, text: str) -> list[str]:
    """A JSON list of texts, or texts with commas. Raises StartupError."""
    if not text.lstrip().startswith("["):
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError as error:
        flag = setting.replace("_", "-")
        raise StartupError(f"--{flag} {text}: must be a JSON list of strings ({error})") from None
