"""`penstock pull`, `list`, `show` and `rm`, with a hub on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from penstock.cli.main import main
from penstock.hub.open_files import users_of
from penstock.prepare import load_manifest
from penstock_worker.machine.doctor import examine_model
from testing.hub_server import HubRepository, HubServer, serving_hub
from testing.tiny_models import LLAMA_CONFIG, write_gguf, write_hub_folder

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with a folder and two quantisations; caches of our own."""
    folder = write_hub_folder(tmp_path / "plain")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["README.md"] = b"---\nlicense: mit\ntags: [x]\n---\nlicense: none of it\n"
    small = write_gguf(tmp_path / "small.gguf").read_bytes()
    large = write_gguf(tmp_path / "large.gguf", heads=6, kv_heads=2).read_bytes()
    quantised = {"m-Q8_0.gguf": large, "m-Q4_K_M.gguf": small}
    with serving_hub(plain=HubRepository(files), gguf=HubRepository(quantised)) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        urls = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", urls)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        yield hub


class Terminal:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        """What is on stdout, or on stderr where a command fails."""
        assert main(words) == code
        said = self._capsys.readouterr()
        return said.out if code == 0 else said.err

    def rows(self) -> list[tuple[str, bool]]:
        """Rows of the models that come from the hub."""
        listed: list[dict[str, Any]] = json.loads(self("list", "--json"))
        return [(row["name"], row["complete"]) for row in listed if row["from"] == "hub"]


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def test_pull_prepares_what_it_downloads(
    server: HubServer, penstock: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "org/gguf"]) == 0
    said = capsys.readouterr()
    assert "org/gguf names no file: taking Q4_K_M" in said.err
    assert "downloading org/gguf from http://127.0.0.1" in said.err
    manifest = load_manifest(Path(said.out.strip()))
    assert (manifest.name, manifest.source) == ("org/gguf", "org/gguf:Q4_K_M")
    facts = json.loads(penstock("pull", "org/gguf:Q8_0", "--json"))
    assert (facts["name"], facts["source"]) == ("org/gguf:Q8_0", "org/gguf:Q8_0")
    assert facts["bytes"] == len(server.repositories["org/gguf"].files["m-Q8_0.gguf"])


def test_pull_says_what_a_worker_would_refuse(
    server: HubServer, penstock: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(penstock("pull", "org/gguf:Q8_0", "--json"))["refused"] == ""
    capsys.readouterr()
    assert main(["pull", "org/plain"]) == 0  # its files hold the embedding alone
    assert "a worker won't load it: the checkpoint lacks the tensor" in capsys.readouterr().err


def test_pull_prints_the_folder_whatever_becomes_of_the_check(
    server: HubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch whose libraries can't be loaded raises OSError."""
    printed: list[str] = []

    def broken() -> None:
        printed.append(capsys.readouterr().out)
        raise OSError("libtorch_cpu.so: cannot open shared object file")

    monkeypatch.setattr("penstock_worker.machine.torch_import.import_torch", broken)
    assert main(["pull", "org/gguf:Q8_0"]) == 0
    assert load_manifest(Path(printed[0].strip())).source == "org/gguf:Q8_0"
    assert main(["pull", "org/gguf:Q8_0", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["folder"], facts["refused"]) == (printed[0].strip(), None)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA_CONFIG, "Penstock's family llama"),
        (
            LLAMA_CONFIG | {"architectures": ["PersimmonForCausalLM"], "model_type": "persimmon"},
            "transformers' code, as no family describes the model: slower, on the CPU, by one rank",
        ),
    ],
)
def test_a_start_says_whose_code_computes(
    config: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(write_hub_folder(tmp_path / "model", config=config))]) == 0
    assert f'computed_by="{said}"' in capsys.readouterr().err


def test_list(server: HubServer, penstock: Terminal, tmp_path: Path) -> None:
    assert penstock.rows() == []
    penstock("pull", "org/gguf:Q8_0")
    penstock("pull", "org/plain")
    local = str(tmp_path / "small.gguf")
    penstock("pull", local)
    unfinished = tmp_path / "hub" / "models--some--thing" / "blobs"
    unfinished.mkdir(parents=True)
    (unfinished / "0.penstock.incomplete").write_bytes(bytes(10))
    assert penstock.rows() == [
        ("org/gguf:Q8_0", True),
        ("org/plain", True),
        ("some/thing", False),
    ]
    table = penstock("list").splitlines()
    assert table[0].split() == ["NAME", "FORMAT", "SIZE", "WHEN", "FROM"]
    assert any(line.startswith("org/gguf:Q8_0 ") and "GGUF Q8_0" in line for line in table)
    assert any(line.startswith("some/thing ") and "hub, incomplete" in line for line in table)
    assert any(line.startswith(local) and line.endswith("file") for line in table)


def test_show_of_what_is_here(server: HubServer, penstock: Terminal) -> None:
    penstock("pull", "org/gguf:Q8_0")
    known = json.loads(penstock("show", "org/gguf:Q8_0", "--json"))
    # Six heads of eight: hidden 48, inner 96, two key/value heads, one layer; as write_gguf has it.
    vocabulary = known["parameters"] - (2 * 48 + 48 + 2 * 48 * 48 + 2 * 16 * 48 + 3 * 96 * 48)
    assert vocabulary % 48 == 0
    assert vocabulary // 48 == load_manifest(known["folder"]).config.vocab_size
    assert known["kv_bytes_per_token"] == 2 * 2 * 8 * 4  # of a float32 model
    assert known["context"] == 128
    assert known["family"] == "llama"
    penstock("pull", "org/plain")
    text = penstock("show", "org/plain")
    for words in ("licence        mit", "chat template  yes", "safetensors float32", "128 tokens"):
        assert words in text
    assert f"parameters     {700 * 24:,}" in text


def test_show_of_what_is_on_the_hub(server: HubServer, penstock: Terminal) -> None:
    text = penstock("show", "org/gguf")
    assert "no; `penstock pull org/gguf` downloads" in text
    for quantisation in ("Q4_K_M", "Q8_0"):
        assert f"org/gguf:{quantisation} " in text
    assert "apache-2.0" in text
    assert not server.sent(".gguf")
    assert "there is no repository org/none" in penstock("show", "org/none", code=1)
    server.broken = 500
    assert "is not here" in penstock("show", "org/gguf", code=1)


def test_rm_of_a_quantisation_and_of_all(
    server: HubServer, penstock: Terminal, tmp_path: Path
) -> None:
    for model in ("org/gguf:Q8_0", "org/gguf:Q4_K_M", "org/plain"):
        penstock("pull", model)
    assert "has no" not in penstock("rm", "org/gguf:q8_0", "--yes")
    assert penstock.rows() == [("org/gguf:Q4_K_M", True), ("org/plain", True)]
    assert "nothing of 'org/none'" in penstock("rm", "org/none", "--yes", code=1)
    assert "it has Q4_K_M" in penstock("rm", "org/gguf:Q2_K", "--yes", code=1)
    penstock("rm", "org/gguf:Q4_K_M", "--yes")
    assert not (tmp_path / "hub" / "models--org--gguf").exists()
    penstock("rm", "org/plain", "--yes")
    assert penstock.rows() == []
    assert list((tmp_path / "xdg" / "penstock" / "models").glob("[!.]*")) == []


def test_rm_of_one_version_keeps_what_the_other_needs(
    server: HubServer, penstock: Terminal, tmp_path: Path
) -> None:
    penstock("pull", "org/gguf:Q8_0")
    penstock("pull", "org/gguf:Q4_K_M")
    old = server.repositories["org/gguf"].commit
    server.repositories["org/gguf"].files["m-Q8_0.gguf"] += bytes(32)
    penstock("pull", "org/gguf:Q8_0")
    penstock("pull", "org/gguf:Q4_K_M")
    penstock("rm", f"org/gguf@{old}", "--yes")
    assert penstock.rows() == [("org/gguf:Q4_K_M", True), ("org/gguf:Q8_0", True)]
    blobs = tmp_path / "hub" / "models--org--gguf" / "blobs"
    assert len(list(blobs.iterdir())) == 2


def test_rm_keeps_what_is_not_in_the_cache(
    server: HubServer, penstock: Terminal, tmp_path: Path
) -> None:
    local = tmp_path / "small.gguf"
    assert "files elsewhere are never removed" in penstock("rm", str(local), "--yes", code=1)
    folder = Path(penstock("pull", str(local)).strip())
    penstock("rm", str(local), "--yes")
    assert local.exists()
    assert not folder.exists()
    # A link that leads out of the cache: what it leads to stays.
    snapshot = tmp_path / "hub" / "models--org--linked" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q8_0.gguf").symlink_to(local)
    penstock("rm", f"org/linked@{'0' * 40}", "--yes")
    assert local.exists()


def test_rm_asks(server: HubServer, penstock: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    penstock("pull", "org/plain")
    assert "--yes removes without asking" in penstock("rm", "org/plain", code=2)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert "nothing was removed" in penstock("rm", "org/plain", code=1)
    assert penstock.rows() == [("org/plain", True)]
    monkeypatch.setattr("builtins.input", lambda _: "y")
    penstock("rm", "org/plain")
    assert penstock.rows() == []


_HOLDERS = {
    "open": "import sys; f = open(sys.argv[1]); print(flush=True); sys.stdin.read()",
    "mapped": (
        "import mmap, sys\n"
        "with open(sys.argv[1], 'rb') as f: m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "print(flush=True); sys.stdin.read()"
    ),
    "served": "import sys; print(flush=True); sys.stdin.read()",
}


@pytest.mark.parametrize("how", _HOLDERS)
def test_rm_keeps_what_a_process_uses(server: HubServer, penstock: Terminal, how: str) -> None:
    folder = penstock("pull", "org/gguf:Q8_0").strip()
    file = folder if how == "served" else load_manifest(folder).weights.files[0]
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDERS[how], file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        try:
            refused = penstock("rm", "org/gguf", "--yes", code=1)
            assert f"in use, so it stays: by process {holder.pid} (" in refused
            assert penstock.rows() == [("org/gguf:Q8_0", True)]
        finally:
            assert holder.stdin is not None
            holder.stdin.close()
            holder.wait(30)
    penstock("rm", "org/gguf", "--yes")
    assert penstock.rows() == []


def test_this_process_is_none_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("x")
    with open(path):
        assert users_of([path]) == []


def test_a_files_quantisation_has_one_name(
    penstock: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that a package carries, and of a local one; list, show and doctor."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    file = write_gguf(tmp_path / "m.gguf", adjust=lambda writer: writer.add_file_type(15))
    for name in ("smollm2-135m", str(file)):
        penstock("prepare", name)
        shown = json.loads(penstock("show", name, "--json"))
        [row] = [each for each in json.loads(penstock("list", "--json")) if each["name"] == name]
        assert row["format"] == f"{shown['format']} {shown['weights']}"
        [about] = [one for one in examine_model(name) if one.name == "model"]
        assert about.text.endswith(f", {shown['weights']}")
    assert shown["weights"] == "Q4_K_M"
