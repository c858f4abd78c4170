"""The commands against a running system, and with an engine of their own; typed in a terminal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.serving import Server, wait_until
from tests.system.terminal import Terminal

pytestmark = [pytest.mark.timeout(600)]
QUESTION = "What is the capital of France?"
SYSTEM = "You are a helpful assistant."
LONG = "Write a long story about a dragon."
"""The greedy answer has more than 400 tokens."""
SMALL = ("--max-model-len", "512", "--num-kv-blocks", "64")


def penstock(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def open_requests(server: Server) -> int:
    return int(server.get("/status")[1]["gateway"]["open_requests"])


@pytest.fixture
def state_home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def chat(server: Server, state_home: dict[str, str]) -> Iterator[Terminal]:
    arguments = ("--url", server.url, "--system", SYSTEM, "--temperature", "0")
    with Terminal("chat", *arguments, "--max-tokens", "500", env=state_home) as terminal:
        terminal.wait_for("/help lists what you can type")
        yield terminal


def prompted(chat: Terminal, start: int = 0) -> None:
    """Waits for the prompt: before it and between two the terminal takes what is typed for itself,
    and may lose some of it."""
    chat.wait_for(r"\n[>…] \Z", start=start)


def say(chat: Terminal, *lines: str) -> None:
    """Types each line when it is asked for."""
    start = 0
    for line in lines:
        prompted(chat, start)
        start = len(chat.plain)
        chat.type(line + "\r")


def test_chat_answers_and_remembers(chat: Terminal, tmp_path: Path, state_home) -> None:
    say(chat, *QUESTION.replace("capital ", "capital\\\n").split("\n"))
    chat.wait_for(r"\(\d+ tokens, [\d.]+/s\)")
    assert "Paris" in chat.plain
    seen = len(chat.plain)
    say(chat, '"""And of', 'Italy?"""')
    chat.wait_for(r"\(\d+ tokens", start=seen)
    file = tmp_path / "talk.json"
    say(chat, f"/save {file}")
    chat.wait_for("written: ")
    messages = json.loads(file.read_text())["messages"]
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[1]["content"] == "What is the capital\nof France?"
    assert messages[3]["content"] == "And of\nItaly?"
    say(chat, "/clear")
    chat.wait_for("forgotten")
    say(chat, "/sav")
    chat.wait_for(r"did you mean /save\?")
    prompted(chat)
    chat.type("\x04")
    assert chat.wait_exit() == 0
    history = Path(state_home["XDG_STATE_HOME"]) / "penstock" / "chat_history"
    assert "/clear" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(chat: Terminal, server: Server) -> None:
    say(chat, LONG)
    chat.wait_for(r"dragon\.\n.*\w{3}")
    chat.type("\x03")
    chat.wait_for(r"\(stopped\)")
    wait_until(lambda: open_requests(server) == 0)
    prompted(chat)
    seen = len(chat.plain)
    chat.type("\x03")
    chat.wait_for("Ctrl-D or /exit leaves", start=seen)
    say(chat, "/clear", QUESTION)
    chat.wait_for(r"Paris[^\n]*\n\(\d+ tokens", start=seen)
    say(chat, "/exit")
    assert chat.wait_exit() == 0


def test_chat_from_a_script_prints_the_answers_alone(server: Server) -> None:
    done = penstock(
        "chat", "--url", server.url, "--temperature", "0", stdin=f"/system {SYSTEM}\n{QUESTION}\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout
    assert "\x1b" not in done.stdout
    assert "tokens" not in done.stdout


def test_run_starts_an_engine_and_leaves_nothing_but_the_text() -> None:
    arguments = ("smollm2-135m", QUESTION, "--system", SYSTEM, "--temperature", "0", *SMALL)
    done = penstock("run", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "The capital of France is Paris.\n"


def test_run_against_a_system_reads_stdin_and_writes_json(server: Server) -> None:
    arguments = ("run", "--url", server.url, "--system", SYSTEM, "--temperature", "0", "--json")
    done = penstock(*arguments, "-", stdin=QUESTION)
    told = json.loads(done.stdout)
    assert told["text"] == "The capital of France is Paris."
    assert (told["finish_reason"], told["completion_tokens"]) == ("stop", 8)
    raw = penstock("run", "--url", server.url, "--raw", "--max-tokens", "4", "--json", "1, 2, 3,")
    told = json.loads(raw.stdout)
    assert (told["finish_reason"], told["completion_tokens"]) == ("length", 4)
    # Without --max-tokens to its end, which is beyond the API's 16.
    arguments = ("--raw", "--temperature", "0", "--json", "The opposite of hot is")
    told = json.loads(penstock("run", "--url", server.url, *arguments).stdout)
    assert told["finish_reason"] == "stop"
    assert told["completion_tokens"] > 16
    refused = penstock("run", "--url", server.url, "--model", "nobody", "Hello")
    assert refused.returncode == 1
    assert "nobody" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_ctrl_c_ends_run_with_what_there_is(server: Server) -> None:
    # It counts on until the context ends.
    arguments = (
        "--url",
        server.url,
        "--raw",
        "--temperature",
        "0",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10,",
    )
    with Terminal("run", *arguments) as run:
        run.wait_for(r"\d{3}", timeout=400)
        run.type("\x03")
        assert run.wait_exit() == 130
        assert "Traceback" not in run.plain
    wait_until(lambda: open_requests(server) == 0)


def test_ctrl_c_while_the_model_loads_ends_run_quietly() -> None:
    with Terminal("run", "smollm2-135m", "Hello", *SMALL) as run:
        run.wait_for("loading smollm2-135m")
        run.type("\x03")
        assert run.wait_exit() == 130
        assert re.fullmatch(r"(penstock: .* …\n?)+\^?C?\n?", run.plain)


def test_status(server: Server, start_server) -> None:
    done = penstock("status", "--url", server.url)
    assert done.returncode == 0
    assert done.stdout.startswith("state        ready\n")
    assert json.loads(penstock("status", "--url", server.url, "--json").stdout)["ready"] is True
    nobody = penstock("status", "--url", "http://127.0.0.1:9")
    assert nobody.returncode == 1
    assert "nobody answers at http://127.0.0.1:9: Connection refused" in nobody.stderr
    silent = penstock("status", "--url", "http://127.0.0.1:9", "--json")
    assert (silent.returncode, json.loads(silent.stdout)["ready"]) == (1, False)


def test_top_is_live_narrow_and_left_with_q(server: Server) -> None:
    with Terminal("top", "--url", server.url, "--interval", "0.3", columns=40, rows=16) as top:
        top.wait_for("q leaves")
        seen = threading.Event()

        def work() -> None:
            while not seen.is_set():
                server.complete(max_tokens=100, ignore_eos=True)

        working = threading.Thread(target=work)
        working.start()
        try:
            top.wait_for(r"running    [1-9]")
            top.wait_for(r"tokens/s   [1-9]")
        finally:
            seen.set()
        top.type("q")
        assert top.wait_exit() == 0
        working.join()
        assert top.seen.endswith("\x1b[?25h\x1b[?1049l"), "the terminal is given back"
        for view in top.seen.split("\x1b[H")[1:]:
            lines = view.split("\r\n")
            assert len(lines) <= 16
    once = penstock("top", "--url", server.url, "--once")
    assert once.returncode == 0
    assert "KV blocks" in once.stdout
    assert "\x1b" not in once.stdout
    assert penstock("top", "--url", "http://127.0.0.1:9", "--once").returncode == 1


def test_pull_prints_the_prepared_folder() -> None:
    folder = Path(penstock("pull", "smollm2-135m").stdout.strip())
    assert (folder / "manifest.json").is_file()
    told = json.loads(penstock("pull", "smollm2-135m", "--json").stdout)
    assert told["folder"] == str(folder)
    assert (told["architecture"], told["chat_template"]) == ("llama", True)
    encoder = json.loads(penstock("pull", "all-minilm-l6-v2", "--json").stdout)
    assert (encoder["architecture"], encoder["max_model_len"]) == ("bert", 512)
    missing = penstock("pull", "/no/such/model")
    assert missing.returncode == 1
    assert "/no/such/model" in missing.stderr


def test_bench_serve_and_its_exit_codes(server: Server, tmp_path: Path) -> None:
    few = ("--requests", "4", "--concurrency", "2", "--warmup", "0", "--input-tokens", "8")
    common = ("bench", "serve", "--url", server.url, *few, "--output-tokens", "8")
    table = penstock(*common)
    assert table.returncode == 0
    assert "time to first token" in table.stdout
    file = tmp_path / "run.json"
    result = json.loads(penstock(*common, "--json", "--output", str(file)).stdout)
    assert result["result"]["completed"] == 4
    assert json.loads(file.read_text())["result"]["output_tokens"] == 32
    assert penstock(*common, "--model", "nobody").returncode == 1
    assert penstock("bench", "serve", "--url", "http://127.0.0.1:9").returncode == 1


@pytest.mark.parametrize(
    ("kind", "flags", "figure"),
    [
        ("latency", ("--batch-size", "2", "--iterations", "2"), "p99_s"),
        ("throughput", ("--num-prompts", "4"), "total_tokens_per_s"),
    ],
)
def test_bench_offline(kind: str, flags: tuple[str, ...], figure: str, tiny_model: str) -> None:
    shape = ("--input-len", "8", "--output-len", "4")
    done = penstock("bench", kind, tiny_model, *shape, *flags, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert result[figure] > 0


def test_bench_says_when_the_context_is_too_short(tiny_model: str) -> None:
    lengths = ("--input-len", "100", "--output-len", "100")
    done = penstock("bench", "throughput", tiny_model, *lengths, "--num-prompts", "1")
    assert done.returncode == 2
    assert "context" in done.stderr


def test_chat_with_an_engine_of_its_own_outlives_ctrl_c(state_home: dict[str, str]) -> None:
    arguments = ("chat", "smollm2-135m", *SMALL, "--system", SYSTEM, "--temperature", "0")
    with Terminal(*arguments, env=state_home) as chat:
        chat.wait_for("/help lists what you can type", timeout=240)
        say(chat, LONG)
        chat.wait_for(r"dragon\.\n.*\w{3}")
        chat.type("\x03")
        chat.wait_for(r"\(stopped\)")
        seen = len(chat.plain)
        say(chat, "/clear", QUESTION)
        chat.wait_for(r"Paris[^\n]*\n\(\d+ tokens", start=seen)
        say(chat, "/exit")
        assert chat.wait_exit() == 0
        assert "Traceback" not in chat.plain


def test_run_without_a_prompt_is_a_conversation_in_a_terminal(
    server: Server, state_home: dict[str, str]
) -> None:
    arguments = ("--url", server.url, "--system", SYSTEM, "--temperature", "0")
    with Terminal("run", *arguments, env=state_home) as run:
        run.wait_for("/help lists what you can type")
        say(run, QUESTION)
        run.wait_for(r"Paris[^\n]*\n\(\d+ tokens")
        say(run, "/exit")
        assert run.wait_exit() == 0
    piped = penstock("run", *arguments, stdin=QUESTION)
    assert piped.stdout == "The capital of France is Paris.\n"
