"""Downloads from a hub on this machine: what comes, what is asked for, and what goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, scan_cache_dir, snapshot_download

from penstock.errors import ModelNotFound, StartupError, UnsupportedModel
from penstock.hub import pull as pulling
from penstock.hub import transfer
from penstock.hub.cache import Cached, find_cached
from penstock.hub.connection import Hub
from penstock.hub.fetch import fetch_model
from penstock.hub.name import parse
from testing.hub_server import HubRepository, HubServer, serving_hub
from testing.tiny_models import write_hub_folder

pytestmark = pytest.mark.timeout(120)

GGUF = {
    "m-Q4_K_M.gguf": os.urandom(3_000_000),
    "m-Q8_0-00001-of-00002.gguf": os.urandom(1000),
    "m-Q8_0-00002-of-00002.gguf": os.urandom(1000),
    "README.md": b"---\nlicense: mit\n---\n",
}


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transfer, "RETRY_SECONDS", 0.0)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    folder = write_hub_folder(tmp_path / "plain")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with serving_hub(plain=HubRepository(files), gguf=HubRepository(dict(GGUF))) as hub:
        yield hub


class Puller:
    """Pulls into a cache of its own, and hears what is reported."""

    def __init__(self, server: HubServer, cache: Path) -> None:
        self.hub = Hub(endpoint=server.url, cache=cache)
        self.said: list[str] = []

    def __call__(self, model: str, fetch: str = "missing") -> Cached:
        name = parse(model)
        assert name is not None
        return fetch_model(name, self.said.append, fetch, self.hub)  # type: ignore[arg-type]


@pytest.fixture
def pull(server: HubServer, tmp_path: Path) -> Puller:
    return Puller(server, tmp_path / "hub")


def test_a_folder_is_whole_and_as_huggingface_hub_would_have_it(
    server: HubServer, pull: Puller, tmp_path: Path
) -> None:
    ours = pull("org/plain").path
    theirs = Path(
        snapshot_download("org/plain", endpoint=server.url, cache_dir=tmp_path / "theirs")
    )
    for path in theirs.iterdir():
        assert (ours / path.name).read_bytes() == path.read_bytes()
        assert os.readlink(ours / path.name) == os.readlink(path)
    mine = scan_cache_dir(pull.hub.cache)
    assert not mine.warnings
    assert [repo.repo_id for repo in mine.repos] == ["org/plain"]
    # Their library finds it, without the network; and ours theirs.
    found = snapshot_download("org/plain", cache_dir=pull.hub.cache, local_files_only=True)
    assert Path(found) == ours
    asked = len(server.requests)
    other = Puller(server, tmp_path / "theirs")
    assert other("org/plain").path == theirs
    assert len(server.requests) == asked


def test_only_what_was_chosen_comes(server: HubServer, pull: Puller) -> None:
    cached = pull("org/gguf:Q8_0")
    assert cached.path.name == "m-Q8_0-00001-of-00002.gguf"
    for name in ("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf", "README.md"):
        assert (cached.snapshot / name).read_bytes() == GGUF[name]
    assert not server.sent("Q4_K_M.gguf")
    assert pull("org/gguf").path == cached.path  # all that is here of it


def test_the_default_choice_is_said(pull: Puller) -> None:
    assert pull("org/gguf").path.name == "m-Q4_K_M.gguf"
    assert "org/gguf names no file: taking Q4_K_M" in pull.said


def test_what_is_here_is_not_asked_for_again(server: HubServer, pull: Puller) -> None:
    first = pull("org/plain")
    server.requests.clear()
    assert pull("org/plain") == first
    assert not server.requests
    assert pull("org/plain", "newest") == first
    assert [method for method, path, _ in server.requests if "/resolve/" in path] == []


def test_a_newer_version_is_fetched_by_pull_alone(server: HubServer, pull: Puller) -> None:
    old = pull("org/gguf:Q4_K_M")
    server.repositories["org/gguf"].files["m-Q4_K_M.gguf"] = b"newer"
    assert pull("org/gguf:Q4_K_M") == old
    new = pull("org/gguf:Q4_K_M", "newest")
    assert new.path.read_bytes() == b"newer"
    assert pull("org/gguf:Q4_K_M") == new
    assert old.path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
    assert pull(f"org/gguf@{old.snapshot.name[:12]}:Q4_K_M") == old


def test_a_mirror_that_lists_no_sizes_and_hashes(server: HubServer, pull: Puller) -> None:
    server.repositories["org/gguf"].metadata = False
    cached = pull("org/gguf:Q4_K_M")
    assert cached.path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
    server.repositories["org/gguf"].wrong["m-Q8_0-00001-of-00002.gguf"] = bytes(1000)
    with pytest.raises(StartupError, match="sha256"):
        pull("org/gguf:Q8_0")


def test_a_broken_connection_is_taken_up_where_it_broke(server: HubServer, pull: Puller) -> None:
    server.repositories["org/gguf"].cut["m-Q4_K_M.gguf"] = [1_200_000, 0, 700_000]
    assert pull("org/gguf:Q4_K_M").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
    ranges = [int(one[6:-1]) if one else 0 for one in server.sent("Q4_K_M.gguf")]
    assert len(ranges) == 4
    assert ranges[0] == 0
    assert ranges == sorted(ranges)
    assert ranges[1] > 1_000_000


@pytest.mark.parametrize("ranges", [True, False])
def test_a_pull_that_was_killed_goes_on(
    server: HubServer, pull: Puller, tmp_path: Path, ranges: bool
) -> None:
    """SIGKILL, so nothing is tidied up; the server answers as one that knows Range, or doesn't."""
    server.repositories["org/gguf"].ranges = ranges
    blobs = pull.hub.cache / "models--org--gguf" / "blobs"
    environment = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_HUB_CACHE": str(pull.hub.cache),
        "HF_HUB_OFFLINE": "0",
    }
    code = (
        "import os, signal\n"
        "from penstock.hub import transfer\n"
        "from penstock.prepare import prepare\n"
        "transfer.CHUNK = 100_000\n"
        "plain = transfer.Transfer._stream\n"
        "def stream(self, file, size, out):\n"
        "    write = out.write\n"
        "    class Out:\n"
        "        def __getattr__(self, name): return getattr(out, name)\n"
        "        def write(self, data):\n"
        "            write(data)\n"
        "            out.flush()\n"
        "            if out.tell() > 1_000_000: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    plain(self, file, size, Out())\n"
        "transfer.Transfer._stream = stream\n"
        "prepare('org/gguf:Q4_K_M')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60)
    assert ran.returncode == -signal.SIGKILL
    etag = server.repositories["org/gguf"].etag("m-Q4_K_M.gguf")
    there = (blobs / f"{etag}.penstock.incomplete").stat().st_size
    assert 1_000_000 < there < 2_000_000
    server.requests.clear()
    assert pull("org/gguf:Q4_K_M").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
    assert server.sent("Q4_K_M.gguf") == [f"bytes={there}-"]
    assert not list(blobs.glob("*.incomplete"))


def test_a_damaged_part_is_not_gone_on_from(server: HubServer, pull: Puller) -> None:
    blobs = pull.hub.cache / "models--org--gguf" / "blobs"
    blobs.mkdir(parents=True)
    etag = server.repositories["org/gguf"].etag("m-Q4_K_M.gguf")
    for damaged in (bytes(1000), bytes(5_000_000), bytes(3_000_000)):
        (blobs / f"{etag}.penstock.incomplete").write_bytes(damaged)
        assert pull("org/gguf:Q4_K_M").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
        (blobs / etag).unlink()


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("m-Q4_K_M.gguf", bytes(3_000_000), "came with the wrong contents: sha256"),
        ("README.md", b"---\nlicense: mip\n---\n", "came with the wrong contents: git hash"),
        ("README.md", b"short", "ended too early"),
        ("README.md", bytes(1000), "more came than the file has"),
    ],
)
def test_wrong_contents_are_thrown_away(
    server: HubServer, pull: Puller, path: str, content: bytes, reason: str
) -> None:
    server.repositories["org/gguf"].wrong[path] = content
    with pytest.raises((StartupError, ModelNotFound), match=reason):
        pull("org/gguf:Q4_K_M")
    name = parse("org/gguf:Q4_K_M")
    assert name is not None
    assert find_cached(pull.hub, name) is None
    etag = server.repositories["org/gguf"].etag(path)
    assert not (pull.hub.cache / "models--org--gguf" / "blobs" / etag).exists()
    server.repositories["org/gguf"].wrong.clear()
    assert pull("org/gguf:Q4_K_M").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]


def test_pull_mends_a_damaged_cache(server: HubServer, pull: Puller) -> None:
    blob = pull("org/gguf:Q4_K_M").path.resolve()
    blob.write_bytes(bytes(3_000_000))
    assert pull("org/gguf:Q4_K_M", "newest").path.read_bytes() == GGUF["m-Q4_K_M.gguf"]
    assert any("m-Q4_K_M.gguf in the cache is damaged (sha256" in said for said in pull.said)
    blob.write_bytes(bytes(3_000_000))
    server.broken = 503
    with pytest.raises(StartupError, match="is damaged in the hub's cache"):
        pull("org/gguf:Q4_K_M", "newest")


def test_offline_with_a_filled_cache(
    server: HubServer, pull: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = pull("org/plain")
    server.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pull("org/plain") == cached
    assert pull("org/plain", "newest") == cached
    assert "HF_HUB_OFFLINE is set" in pull.said[-1]
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE is set") as raised:
        pull("org/gguf")
    assert type(raised.value) is ModelNotFound
    assert not server.requests


def test_no_network(pull: Puller, tmp_path: Path) -> None:
    gone = Puller(HubServer({}, url="http://127.0.0.1:9"), pull.hub.cache)
    with pytest.raises(ModelNotFound, match=r"127\.0\.0\.1:9 can't be reached"):
        gone("org/plain")
    cached = pull("org/plain")
    assert gone("org/plain", "newest") == cached
    assert "can't be reached" in gone.said[-1]


def test_no_network_names_what_decides_the_way(pull: Puller, monkeypatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    gone = Puller(HubServer({}, url="http://127.0.0.1:9"), pull.hub.cache)
    with pytest.raises(ModelNotFound, match="behind a proxy, set HTTPS_PROXY; for a mirror, set"):
        gone("org/plain")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.example:3128")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match="HF_ENDPOINT names this hub") as raised:
        gone("org/plain")
    assert "HTTPS_PROXY is http://proxy.example:3128" in str(raised.value)
    assert "secret" not in str(raised.value)


def test_what_the_hub_refuses(
    server: HubServer, pull: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelNotFound, match=r"no repository org/none on http.*or it is private"):
        pull("org/none")
    with pytest.raises(ModelNotFound, match=r"org/gguf has no revision 'v9'"):
        pull("org/gguf@v9")
    with pytest.raises(ModelNotFound, match=r"no 'Q2_K'; it has Q4_K_M, Q8_0"):
        pull("org/gguf:Q2_K")
    server.repositories["org/gguf"].gated = True
    with pytest.raises(
        ModelNotFound, match=r"gated, and no token is set: accept its terms.*hf auth login"
    ):
        pull("org/gguf")
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(ModelNotFound, match=r"gated, and the token of HF_TOKEN has no access"):
        pull("org/gguf")
    monkeypatch.setenv("HF_TOKEN", server.token)
    assert pull("org/gguf").path.exists()


def test_a_split_file_that_lacks_a_part(server: HubServer, pull: Puller) -> None:
    del server.repositories["org/gguf"].files["m-Q8_0-00002-of-00002.gguf"]
    with pytest.raises(ModelNotFound, match="split file of which org/gguf lacks parts"):
        pull("org/gguf:Q8_0")


def test_no_room_on_the_disk(
    server: HubServer, pull: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = (64 << 20) + 2_999_999

    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(StartupError, match=r"3 MB are to be downloaded, and .* has 70.1 MB free"):
        pull("org/gguf:Q4_K_M")
    assert not server.sent("Q4_K_M.gguf")
    blobs = pull.hub.cache / "models--org--gguf" / "blobs"
    etag = server.repositories["org/gguf"].etag("m-Q4_K_M.gguf")
    (blobs / f"{etag}.penstock.incomplete").write_bytes(GGUF["m-Q4_K_M.gguf"][:1000])
    assert pull("org/gguf:Q4_K_M").path.exists()  # the part that is here takes no more room


def test_a_disk_that_fills_up_meanwhile(server: HubServer, tmp_path: Path) -> None:
    """A limit on files' sizes stands for it: the system refuses to write on."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))\n"
        "from penstock.errors import StartupError\n"
        "from penstock.prepare import prepare\n"
        "try: prepare('org/gguf:Q4_K_M')\n"
        "except StartupError as error: print(error)\n"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "",
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert "can't be written to the hub's cache" in ran.stdout, ran.stderr
    assert "File too large" in ran.stdout


@pytest.mark.parametrize("path", ["../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "a\\b.gguf", ""])
def test_a_hub_that_lists_paths_outside(server: HubServer, pull: Puller, path: str) -> None:
    server.repositories["org/gguf"].files[path] = b"x"
    with pytest.raises(UnsupportedModel, match="no path may be"):
        pull("org/gguf:Q4_K_M")
    assert not pull.hub.cache.exists()
