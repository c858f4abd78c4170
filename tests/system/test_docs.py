"""What README and docs show works as it is shown: curl lines, Python, and `penstock` as a client.

Blocks of a page continue one another, as a reader would run them.  Commands that start systems are
run by other tests of this folder; that they could run, tests/docs says.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.serve import curl_line
from testing.pooling_models import save, splade_files
from testing.recordings import tones, wav
from testing.serving import Server
from testing.tiny_models import write_gguf
from tests.adapter_folders import random_factors, write_peft
from tests.docs.snippets import BASE, PAGES, commands_of, lines_of, snippets, text_of
from tests.reference.endpoints import endpoints_page
from tests.reference.generate import PORT_FLAGS, free_port, get, metrics_after_a_request
from tests.reference.pages import metrics_page
from tests.shared.media.pictures import picture
from tests.shared.media.sounds import saved_sound, sound
from tests.system.hearing_models import write_qwen2_audio
from tests.system.seeing_models import write_llava
from tests.system.transcribing_models import write_whisper
from tests.worker.pooling.space_models import write_clip

pytestmark = pytest.mark.timeout(600)

README = text_of("README.md")
ADAPTERS = "docs/guides/adapters.md"
BATCHES = "docs/guides/batches.md"
CLIENTS = "docs/guides/clients.md"
"""tests/system/clients runs its code."""
STORED = "docs/guides/stored-responses.md"
EMBEDDINGS = "docs/guides/embeddings.md"
GRPC = "docs/guides/grpc.md"
"""tests/system/test_grpc.py runs its code."""
MEDIA = "docs/guides/media.md"
RECEIPTS = "docs/guides/receipts.md"
SCHEDULING = "docs/guides/scheduling.md"
TRANSCRIPTION = "docs/guides/transcription.md"
WEIGHTS = "docs/guides/replace-weights.md"
OF_THEIR_OWN = (
    *("README.md", ADAPTERS, BATCHES, CLIENTS, EMBEDDINGS),
    *(GRPC, MEDIA, STORED, TRANSCRIPTION),
)
"""Pages whose code wants another server or other packages, in tests of their own."""
STREAM_ENDED = 28
"""curl's exit code where --max-time is over."""


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if any(each.language == language for each in snippets(page))]


@pytest.fixture(scope="module")
def minilm() -> Iterator[Server]:
    running = Server("all-minilm-l6-v2")
    try:
        yield running
    finally:
        running.close()


class FairServer(Server):
    """With the policy `fair`, and ports for metrics: numbers of PORT_FLAGS."""

    def __init__(self) -> None:
        self.ports = [free_port() for _ in PORT_FLAGS]
        flags = zip(PORT_FLAGS, map(str, self.ports), strict=True)
        super().__init__(*itertools.chain(*flags), "--scheduling-policy", "fair")


@pytest.fixture(scope="module")
def fair() -> Iterator[FairServer]:
    running = FairServer()
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("classifier")
    save(folder, "BertForSequenceClassification", num_labels=2)
    running = Server(str(folder))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sparse")
    save(folder, "BertForMaskedLM")
    splade_files(folder)
    running = Server(str(folder))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "tiny-clip").folder


@pytest.fixture(scope="module")
def picturing(tiny_clip: Path) -> Iterator[Server]:
    with Server(str(tiny_clip)) as running:
        yield running


@pytest.fixture(scope="module")
def tiny_llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llava(tmp_path_factory.mktemp("llava") / "tiny-llava")


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(str(write_qwen2_audio(tmp_path_factory.mktemp("sounds") / "tiny-qwen2-audio")))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def seeing(tiny_llava: Path) -> Iterator[Server]:
    running = Server(str(tiny_llava))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def tiny_whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper") / "tiny-whisper", 64)


@pytest.fixture(scope="module")
def transcribing(tiny_whisper: Path) -> Iterator[Server]:
    running = Server(str(tiny_whisper))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the folder `adapters`, of adapters for the default model."""
    folder = tmp_path_factory.mktemp("documented")
    shapes = {"model.layers.0.self_attn.q_proj": (576, 576)}
    for seed, name in enumerate(("sql", "law", "poet")):
        write_peft(folder / "adapters" / name, random_factors(shapes, 4, seed))
    return folder


@pytest.fixture(scope="module")
def adapting(adapters: Path) -> Iterator[Server]:
    flags = ["--lora-modules", f"sql={adapters / 'adapters' / 'sql'}"]
    flags += ["--lora-allowed-folder", str(adapters / "adapters")]
    with Server("smollm2-135m", "--enable-lora", *flags) as running:
        yield running


@pytest.fixture(scope="module")
def storing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("data")
    with Server(
        "smollm2-135m", "--data-dir", str(folder), "--stored-response-hours", "1"
    ) as running:
        yield running


# ---- commands

OWN_SERVERS = (
    *(ADAPTERS, BATCHES, EMBEDDINGS, MEDIA, RECEIPTS, SCHEDULING, STORED),
    *(TRANSCRIPTION, WEIGHTS),
)
"""Pages whose commands need another model or other flags."""


@pytest.mark.parametrize("page", [page for page in pages_with("sh") if page not in OWN_SERVERS])
def test_commands_of_a_page(page: str, server: Server, tmp_path: Path) -> None:
    run_commands(page, lambda _: server, tmp_path)


def test_commands_of_the_embeddings_page(
    minilm: Server, classifier: Server, picturing: Server, sparse: Server, tmp_path: Path
) -> None:
    others = {
        "/classify": classifier,
        "/predict": classifier,
        "data:image": picturing,
        "/embed_sparse": sparse,
    }

    def server_of(line: str) -> Server:
        return next((others[each] for each in others if each in line), minilm)

    run_commands(EMBEDDINGS, server_of, tmp_path)


def test_commands_of_the_page_about_adapters(adapting: Server, tmp_path: Path) -> None:
    run_commands(ADAPTERS, lambda _: adapting, tmp_path)


def test_commands_of_the_page_about_weights(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "first.gguf")
    write_gguf(tmp_path / "step-200.gguf", seed=1)
    with Server(str(model), "--weights-allowed-folder", str(tmp_path)) as server:
        run_commands(WEIGHTS, lambda _: server, tmp_path)


def test_commands_of_the_page_about_batches(storing: Server, tmp_path: Path) -> None:
    run_commands(BATCHES, lambda _: storing, tmp_path)


def test_commands_of_the_page_about_receipts(tmp_path: Path) -> None:
    with Server("--receipt-key-file", str(tmp_path / "key.pem")) as signing:
        run_commands(RECEIPTS, lambda _: signing, tmp_path)


def test_commands_of_the_page_about_stored_responses(storing: Server, tmp_path: Path) -> None:
    run_commands(STORED, lambda _: storing, tmp_path)


def test_commands_of_the_scheduling_page(fair: FairServer, tmp_path: Path) -> None:
    run_commands(SCHEDULING, lambda _: fair, tmp_path)


def test_commands_of_the_page_about_media(seeing: Server, hearing: Server, tmp_path: Path) -> None:
    picture().save(tmp_path / "photo.jpg")
    (tmp_path / "question.wav").write_bytes(saved_sound(sound(0.5)))
    run_commands(MEDIA, lambda line: hearing if "audio" in line else seeing, tmp_path)


def test_commands_of_the_page_about_speech(transcribing: Server, tmp_path: Path) -> None:
    (tmp_path / "talk.wav").write_bytes(wav(tones(2.0, 1)))
    run_commands(TRANSCRIPTION, lambda _: transcribing, tmp_path)


def run_commands(page: str, server_of: Callable[[str], Server], folder: Path) -> None:
    """Runs what needs nothing but a server; a JSON block behind a command shows its last answer.
    file-ID, batch-ID, resp_ID and the like are the first that an answer had."""
    printed = ""
    ids: dict[str, str] = {}
    for snippet, following in itertools.pairwise([*snippets(page), None]):
        assert snippet is not None
        if snippet.language == "json" and "custom_id" not in snippet.code:
            assert printed, f"{snippet} shows an answer to nothing"
            check_shape(json.loads(snippet.code), json.loads(printed), str(snippet))
        if snippet.language == "sh":
            for line in filter(can_run, lines_of(snippet.code)):
                for name, known in ids.items():
                    line = line.replace(f"{name}ID", known)
                printed = run_line(line, server_of(line), folder)
                for known in re.findall(
                    r'"id":"((?:file-|[a-z]*batch[-_]|resp_|conv_)[0-9a-f]+)"', printed
                ):
                    ids.setdefault(known.rstrip("0123456789abcdef"), known)
                shown = following.code if following is not None else ""
                failed = printed.startswith(('{"error"', '{"type":"error"'))
                assert not failed or shown.startswith('{"error"'), line


def can_run(line: str) -> bool:
    """Whether it asks a running server, or computes something small by itself."""
    ((_, words), *_) = commands_of(line)
    match words:
        case ["curl" | "printf", *_]:
            return True
        case ["penstock", "key" | "doctor" | "recommend" | "curve-keys", *_]:
            return "/srv/" not in line
        case ["penstock", "simulate", trace, *_]:
            return trace.startswith("synthetic:")
        case ["penstock", *_]:
            return f"--url {BASE}" in line
    return False


MADE_ID = re.compile(r'"id":"((?:file-|[a-z]*batch[-_]|resp_|conv_)[0-9a-f]+)"')

SHELLS = frozenset("|&;<>$`*?(){}[]~\\")
"""What means something to a shell."""


def run_line(line: str, server: Server, folder: Path) -> str:
    """What it prints. A whole line, so that pipes and redirections are the shell's."""
    if "curl" in line and not shutil.which("curl"):
        pytest.skip("curl is not installed (Debian: apt-get install curl)")
    penstock = [sys.executable, "-m", "penstock"]
    line = line.replace(BASE, server.url)
    if "curl " in line:
        line = line.replace("curl ", "curl -sS ", 1)
    environment = {**os.environ, "PENSTOCK_API_KEY": "any"}
    command = ["sh", "-c", line]
    if line.startswith("penstock ") and not SHELLS.intersection(line):
        command = [*penstock, *shlex.split(line, comments=True)[1:]]
    elif line.startswith("penstock "):
        command[2] = shlex.join(penstock) + line.removeprefix("penstock")
    if "$KEY" in line:
        environment["KEY"] = "any"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    allowed = (0, STREAM_ENDED) if "--max-time" in line else (0,)
    # The doctor's 1 says that this machine lacks something, which is no fault of the page's.
    assert done.returncode in allowed or "doctor" in line, f"{line}\n{done.stdout}{done.stderr}"
    quiet = any(each in line for each in (">>", " -o ", "curve-keys"))
    assert done.stdout or quiet, line
    return done.stdout


def check_shape(shown: Any, real: Any, where: str) -> None:
    """Raises AssertionError where a page shows a field that is not there, or of another kind."""
    if isinstance(shown, dict):
        assert isinstance(real, dict), where
        for key, value in shown.items():
            assert key in real, f"{where}: the answer has no {key}: {real}"
            check_shape(value, real[key], f"{where}.{key}")
    elif isinstance(shown, list):
        assert isinstance(real, list), where
        for value, other in zip(shown, real, strict=False):
            check_shape(value, other, where)
        assert real or not shown, f"{where}: the answer's list is empty"
    elif shown is not None:
        assert kind_of(shown) is kind_of(real), f"{where}: {shown!r} is shown, {real!r} came"


def kind_of(value: Any) -> type:
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def test_the_curl_line_is_the_one_that_serve_prints(server: Server) -> None:
    """Which test_supervisor pastes into a shell."""
    assert curl_line(BASE, server.model) in README
    assert curl_line(server.url, server.model) in server.stdout


# ---- Python


def python_of(page: str) -> list[str]:
    return [each.code for each in snippets(page) if each.language == "python"]


def run(code: str, server: Server | None = None, folder: Path | None = None) -> str:
    """What a script prints, in that folder."""
    code = code if server is None else code.replace(BASE, server.url)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "page", [page for page in pages_with("python") if page not in OF_THEIR_OWN]
)
def test_python_of_a_page(page: str, server: Server) -> None:
    assert run("\n".join(python_of(page)), server).strip()


def test_python_of_the_page_about_media(tiny_llava: Path, tmp_path: Path) -> None:
    picture().save(tmp_path / "photo.jpg")
    # The other blocks need models that aren't here; test_whisper runs the same.
    code = python_of(MEDIA)[0].replace("MODEL", str(tiny_llava))
    assert run(code, folder=tmp_path)


def test_python_of_the_page_about_speech(
    transcribing: Server, tiny_whisper: Path, tmp_path: Path
) -> None:
    (tmp_path / "talk.wav").write_bytes(wav(tones(2.0, 1)))
    asking, hearing, speaking = python_of(TRANSCRIPTION)
    run(asking.replace("MODEL", transcribing.model), transcribing, tmp_path)
    assert run(hearing.replace("MODEL", str(tiny_whisper)), folder=tmp_path)
    there = transcribing.url.replace("http", "ws", 1)
    speaking = speaking.replace("MODEL", transcribing.model)
    said = run(speaking.replace("ws://127.0.0.1:8000", there), folder=tmp_path)
    assert "transcription.done" in said.splitlines()[-1]


def test_python_of_the_page_about_batches(storing: Server) -> None:
    (by_messages,) = python_of(BATCHES)
    assert run(by_messages, storing).strip() == "1 succeeded"


def test_python_of_the_page_about_stored_responses(storing: Server) -> None:
    (in_conversation,) = python_of(STORED)
    said = run(in_conversation, storing).splitlines()
    assert said[0] == "user Name a river."
    assert said[-1] == "user And a lake."


def test_python_of_the_page_about_adapters(adapters: Path) -> None:
    (code,) = python_of(ADAPTERS)
    assert len(run(code, folder=adapters).splitlines()) >= 2


def test_the_readmes_sdk_example(server: Server) -> None:
    (example,) = [code for code in python_of("README.md") if "OpenAI(" in code]
    assert BASE in example
    # It draws a fresh seed each time, so no particular word is sure to come.
    assert len(run(example, server).strip()) > 10


def test_the_readmes_library_example() -> None:
    (generating,) = [code for code in python_of("README.md") if "LLM(" in code]
    printed = run(generating)
    assert "Paris" in printed
    assert len(printed.strip().splitlines()) >= 3


def test_python_of_the_embeddings_page(tiny_clip: Path, tmp_path: Path) -> None:
    seeing, embedding = python_of(EMBEDDINGS)
    picture().save(tmp_path / "photo.jpg")
    code = seeing.replace("openai/clip-vit-base-patch32", str(tiny_clip))
    assert run(code, folder=tmp_path).splitlines()[-1] == "[24, 24, 24]"
    vector, score = run(embedding).strip().splitlines()
    assert len(vector.split(",")) == 4
    assert 0 < float(score) < 1


# ---- the reference


def test_the_reference_of_endpoints_is_current(server: Server) -> None:
    document = json.loads(get(port_of(server), "/openapi.json"))
    assert text_of("docs/reference/endpoints.md") == endpoints_page(document), HOW


def test_the_reference_of_metrics_is_current(server: Server, fair: FairServer) -> None:
    plain, gateway = (metrics_after_a_request(port_of(each)) for each in (server, fair))
    engine, worker = (get(port, "/metrics") for port in fair.ports)
    assert text_of("docs/reference/metrics.md") == metrics_page(plain, gateway, engine, worker), HOW


def test_every_endpoint_has_an_example(server: Server) -> None:
    """Under one of its paths, where it has several; the pages for people need none."""
    shown = "".join(each.code for page in PAGES for each in snippets(page))
    document = json.loads(get(port_of(server), "/openapi.json"))
    paths: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for operation in methods.values():
            paths.setdefault(operation["summary"], []).append(documented(path, server.model))
    for_people = (["/docs"], ["/"])
    without = [
        aliases
        for aliases in paths.values()
        if aliases not in for_people and not any(f"{BASE}{path}" in shown for path in aliases)
    ]
    assert not without


def documented(path: str, model: str) -> str:
    """A path as pages write it."""
    path = path.replace("/messages/batches/{id}", "/messages/batches/msgbatch_ID")
    for kind in ("file", "batch"):
        path = path.replace(f"/{kind}s/{{id}}", f"/{kind}s/{kind}-ID")
        path = path.replace(f"/{kind}es/{{id}}", f"/{kind}es/{kind}-ID")
    path = path.replace("/responses/{id}", "/responses/resp_ID")
    path = path.replace("/conversations/{id}", "/conversations/conv_ID").replace("{item}", "msg_ID")
    return path.replace("/adapters/{name}", "/adapters/poet").replace("{name}", model)


HOW = "run `python -m tests.reference.generate`"


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])
