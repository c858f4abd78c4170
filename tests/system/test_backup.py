"""`penstock backup` beside a running server, and what a server makes of the copy."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from openai import OpenAI

from testing.serving import Server

pytestmark = pytest.mark.timeout(400)

TEMPLATE = "{% for each in messages %}{{ each.content }}\n{% endfor %}assistant:"
FLAGS = ("--num-kv-blocks", "256", "--stored-response-hours", "1")


def backup(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "penstock", "backup", str(source), str(target)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def client_of(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=120)


def upload(client: OpenAI, text: str) -> str:
    line = f'{{"text": "{text}"}}\n'.encode()
    return client.files.create(file=(f"{text}.jsonl", line), purpose="batch").id


def test_a_copy_of_a_live_folder_serves_what_was_stored(tiny_model: str, tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    flags = ("--chat-template", str(template), *FLAGS)
    with Server(tiny_model, "--data-dir", str(data), *flags) as server, client_of(server) as client:
        before = {upload(client, f"before-{number}"): f"before-{number}" for number in range(5)}
        response = client.responses.create(
            model=server.model, input="Hello", max_output_tokens=16, store=True
        )
        stop = threading.Event()

        def change() -> None:
            """Files come and go while the folder is copied."""
            with client_of(server) as other:
                number = 0
                while not stop.is_set():
                    other.files.delete(upload(other, f"gone-{number}"))
                    number += 1

        changing = threading.Thread(target=change)
        changing.start()
        try:
            done = backup(data, copy)
        finally:
            stop.set()
            changing.join()
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"copied {data} to {copy}: ")
        assert client.responses.retrieve(response.id).id == response.id
    with Server(tiny_model, "--data-dir", str(copy), *flags) as server, client_of(server) as client:
        for file_id, text in before.items():
            assert text in client.files.content(file_id).text
        for file in client.files.list():
            assert file.filename.removesuffix(".jsonl") in client.files.content(file.id).text
        restored = client.responses.retrieve(response.id)
        assert restored.output_text == response.output_text


def test_what_cannot_be_copied_is_said(tmp_path: Path) -> None:
    nothing = backup(tmp_path, tmp_path / "copy")
    assert (nothing.returncode, "holds no penstock.db" in nothing.stderr) == (2, True)
    (tmp_path / "penstock.db").write_bytes(b"this is no database" * 100)
    there = backup(tmp_path, tmp_path)
    assert (there.returncode, "is there already" in there.stderr) == (2, True)
    within = backup(tmp_path, tmp_path / "a" / "copy")
    assert (within.returncode, "which is to be copied" in within.stderr) == (2, True)
    damaged = backup(tmp_path, tmp_path.with_name("elsewhere"))
    assert (damaged.returncode, "not a database" in damaged.stderr) == (1, True)
    assert not list(tmp_path.parent.glob(".elsewhere*")), "nothing half made is left"
