"""TLS of the HTTP socket: a certificate and its key, as files in PEM."""

from __future__ import annotations

import ssl
from pathlib import Path

from penstock.config.settings import GatewayConfig
from penstock.errors import StartupError


def server_context(config: GatewayConfig) -> ssl.SSLContext | None:
    """What connections are accepted with; None: without TLS.

    Raises StartupError that names the flag whose file can't be used, and why.
    """
    certificate, key = config.ssl_certfile, config.ssl_keyfile
    if certificate is None:
        if key is not None:
            raise StartupError("--ssl-keyfile needs --ssl-certfile, the certificate of that key")
        return None
    _check_readable("--ssl-certfile", certificate)
    if key is not None:
        _check_readable("--ssl-keyfile", key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except (ssl.SSLError, OSError) as error:
        raise StartupError(_why(error, certificate, key)) from None
    return context


def client_context(config: GatewayConfig) -> ssl.SSLContext | None:
    """A TLS context for a process that asks its own gateways: it knows whom it asks, and trusts any
    certificate. None without TLS."""
    if config.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _refuse_password() -> str:
    """Refuses an encrypted key, for which OpenSSL would ask a password at the terminal."""
    raise StartupError("--ssl-keyfile: the key is encrypted; give one without a password")


def _check_readable(flag: str, name: str) -> None:
    try:
        with Path(name).open("rb"):
            return
    except OSError as error:
        raise StartupError(f"{flag} {name}: {error.strerror}") from None


def _why(error: OSError, certificate: str, key: str | None) -> str:
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return f"--ssl-keyfile {key or certificate} is not the key of --ssl-certfile {certificate}"
    flags = f"--ssl-certfile {certificate}"
    if key is None:
        return (
            f"{flags} can't be used: it must hold a certificate and its private key in PEM, or "
            f"give the key with --ssl-keyfile ({reason or error})"
        )
    return (
        f"{flags} and --ssl-keyfile {key} can't be used: they must be a certificate and its "
        f"private key in PEM ({reason or error})"
    )
