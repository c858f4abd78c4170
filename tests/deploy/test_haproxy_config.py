"""deploy/haproxy/haproxy.cfg, as haproxy itself reads it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from deploy.local import HAPROXY_CONFIG
from tests.deploy.programs import certificate, needed

VARIANTS = {
    "as it is": {},
    "other name and port": {"PENSTOCK_GATEWAY": "gw.example", "PENSTOCK_GATEWAY_PORT": "81"},
    "many gateways": {"PENSTOCK_MAX_GATEWAYS": "500"},
    "one fixed gateway": {"PENSTOCK_GATEWAY_1": "127.0.0.1:8001"},
    "four fixed gateways": {f"PENSTOCK_GATEWAY_{i}": f"127.0.0.1:800{i}" for i in (1, 2, 3, 4)},
    "bounded by source": {"PENSTOCK_PER_SOURCE": "64"},
    "few connections, large requests": {
        "PENSTOCK_LB_MAXCONN": "100",
        "PENSTOCK_LB_BUFFER": "131072",
    },
    "patient": {"PENSTOCK_STREAM_TIMEOUT": "2h", "PENSTOCK_HARD_STOP": "10m"},
    "TLS beside plain HTTP": {"PENSTOCK_TLS_CERT": "CERTIFICATE"},
    "TLS only": {"PENSTOCK_TLS_CERT": "CERTIFICATE", "PENSTOCK_TLS_ONLY": "1"},
    "set to nothing": dict.fromkeys(
        ("PENSTOCK_GATEWAY_1", "PENSTOCK_TLS_CERT", "PENSTOCK_TLS_ONLY", "PENSTOCK_PER_SOURCE"), ""
    ),
}


def check(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [needed("haproxy"), "-c", "-V", "-f", str(HAPROXY_CONFIG)],
        env={**plain, **variables},
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_haproxy_accepts_it_without_a_warning(variant: str, tmp_path: Path) -> None:
    variables = dict(VARIANTS[variant])
    if variables.get("PENSTOCK_TLS_CERT"):
        variables["PENSTOCK_TLS_CERT"] = str(certificate(tmp_path))
    said = check(variables)
    assert said.returncode == 0, said.stderr
    assert "Configuration file is valid" in said.stdout
    assert "WARNING" not in said.stderr, said.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"PENSTOCK_TLS_CERT": "/nowhere.pem"},
        {"PENSTOCK_STREAM_TIMEOUT": "soon"},
        {"PENSTOCK_MAX_GATEWAYS": "many"},
        {"PENSTOCK_PER_SOURCE": "many"},
        {"PENSTOCK_GATEWAY_1": "127.0.0.1:port"},
        {"PENSTOCK_TLS_ONLY": "1"},
    ],
    ids=lambda each: ",".join(each),
)
def test_a_wrong_variable_stops_it_at_the_start(variables: dict[str, str]) -> None:
    said = check(variables)
    assert said.returncode != 0
    assert "[ALERT]" in said.stderr


def test_every_variable_is_explained_at_its_top() -> None:
    text = HAPROXY_CONFIG.read_text()
    head, body = text.split("\nglobal\n")
    used = set(re.findall(r"PENSTOCK_\w+", body))
    told = set(re.findall(r"PENSTOCK_\w+", head)) | {f"PENSTOCK_GATEWAY_{i}" for i in (2, 3, 4)}
    assert used == told
