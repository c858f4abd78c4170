"""Certificates for tests, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str, *more: str) -> tuple[str, str]:
    """A self-signed certificate for localhost and 127.0.0.1, and its key. more: options of
    `openssl req`; without any the key is not encrypted."""
    binary = shutil.which("openssl")
    if binary is None:
        pytest.skip("no openssl on this machine (Debian: apt-get install openssl)")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [binary, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-out", str(certificate), "-keyout", str(key), *(more or ("-nodes",))]
    subprocess.run(command, check=True, capture_output=True)
    return str(certificate), str(key)
