"""Makes the Secrets of CurveZMQ keys that are missing, and keeps those that are there.

python curve_secrets.py NAME FOLDER: NAME-engine, NAME-gateway and NAME-worker, in the pod's own
namespace, by way of FOLDER. Run by a hook of the chart, in an image of Penstock.
"""

import base64
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("ACCOUNT_DIR", "/var/run/secrets/kubernetes.io/serviceaccount"))
ROLES = ("engine", "gateway", "worker")


def ask(method, path, body=None):
    """The API server's answer, or None where there is no such thing."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    scheme = os.environ.get("API_SCHEME", "https")
    url = f"{scheme}://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}"
    request = urllib.request.Request(url, method=method)
    request.add_header("Authorization", "Bearer " + (ACCOUNT / "token").read_text().strip())
    request.add_header("Content-Type", "application/json")
    request.data = None if body is None else json.dumps(body).encode()
    trust = ssl.create_default_context(cafile=ACCOUNT / "ca.crt") if scheme == "https" else None
    try:
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        if method == "GET" and error.code == 404:
            return None
        raise SystemExit(f"{method} {path}: {error.code} {error.read().decode()[:1000]}") from None


def main(name, folder):
    namespace = (ACCOUNT / "namespace").read_text().strip()
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    found = {role: ask("GET", f"{secrets}/{name}-{role}") for role in ROLES}
    for role, secret in found.items():
        for key, text in ((secret or {}).get("data") or {}).items():
            put(folder / role / inside(key), base64.b64decode(text))
    subprocess.run(["penstock", "curve-keys", str(folder)], check=True)
    for role, secret in found.items():
        data = {
            key_of(path.relative_to(folder / role)): base64.b64encode(path.read_bytes()).decode()
            for path in sorted((folder / role).rglob("*.key*"))
        }
        if secret is None:
            labels = {"app.kubernetes.io/name": "penstock", "app.kubernetes.io/component": role}
            ask(
                "POST",
                secrets,
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": f"{name}-{role}", "labels": labels},
                    "type": "Opaque",
                    "data": data,
                },
            )
            print(f"made {name}-{role}")
        elif secret.get("data") != data:
            ask("PUT", f"{secrets}/{name}-{role}", {**secret, "data": data})
            print(f"completed {name}-{role}")
        else:
            print(f"kept {name}-{role}")


def put(path, data):
    """For our own eyes."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)


def inside(key):
    """A Secret's key as a path: a key holds no slash."""
    for folder in ("frontends", "workers"):
        if key.startswith(f"{folder}."):
            return Path(folder) / key.removeprefix(f"{folder}.")
    return Path(key)


def key_of(path):
    return ".".join(path.parts)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
