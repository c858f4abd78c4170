"""The certificates that a command trusts when it asks over HTTPS; flags are named as curl's."""

from __future__ import annotations

import argparse
import ssl

from penstock.errors import InvalidRequest


def add_trust_arguments(parser: argparse._ActionsContainer) -> None:
    """--cacert and --insecure."""
    parser.add_argument(
        "--cacert",
        metavar="FILE",
        help="With https: trust the certificates in this PEM file, and no others. Default: what "
        "the system trusts.",
    )
    parser.add_argument(
        "-k", "--insecure", action="store_true", help="With https: trust any certificate."
    )


def trusted_context(arguments: argparse.Namespace) -> ssl.SSLContext:
    """The TLS context that the two flags above ask for. Raises InvalidRequest for both at once, or
    an unusable file."""
    if arguments.insecure and arguments.cacert is not None:
        raise InvalidRequest("--cacert says whom to trust and --insecure trusts all: give one")
    context = _context(arguments.cacert)
    if arguments.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _context(cacert: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cacert)
    except ssl.SSLError as error:
        raise InvalidRequest(
            f"--cacert {cacert} holds no certificate in PEM ({error.reason or error})"
        ) from None
    except OSError as error:
        raise InvalidRequest(f"--cacert {cacert}: {error.strerror}") from None


def why_untrusted(error: BaseException, url: str) -> str | None:
    """Explains an error about TLS, with the way out; None for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {url} is not trusted ({error.verify_message}); give its CA with "
            "--cacert FILE, or trust any with --insecure"
        )
    if isinstance(error, ssl.SSLError):
        return f"no TLS at {url} ({error.reason or error}); is it http:// instead of https://?"
    return None
