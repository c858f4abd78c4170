"""Programs that these tests run, and what they need."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deploy.local import NotThere, found


def needed(program: str) -> str:
    """Its path; without it the test is skipped, and says so."""
    try:
        return found(program)
    except NotThere as missing:
        pytest.skip(str(missing))


def certificate(folder: Path) -> Path:
    """A PEM file with a key and a certificate of its own for `localhost`."""
    key, cert, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    command = [needed("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    both.write_text(key.read_text() + cert.read_text())
    return both
