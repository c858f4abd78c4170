"""The penstock command as a shell sees it."""

from __future__ import annotations

import io
import os
import re
import resource
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import penstock
from penstock.cli.commands import BY_NAME, COMMANDS, Command
from penstock.cli.main import main
from penstock.version import COMMAND, DISTRIBUTION
from tests.reference.pages import BY_SUPERVISOR_ALONE

ROOT = Path(__file__).parents[3]
PENSTOCK = [sys.executable, "-m", "penstock"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_version_is_the_distributions() -> None:
    assert run("--version").stdout == f"penstock {penstock.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (project["name"], project["version"]) == (DISTRIBUTION, penstock.__version__)
    assert project["scripts"] == {"penstock": COMMAND}


def test_another_projects_distribution_is_told_apart(tmp_path, monkeypatch, capfd) -> None:
    info = tmp_path / "penstock-7.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock\nVersion: 7.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(("list",)) == 1
    said = capfd.readouterr().err
    assert "another project's distribution `penstock` 7.1 is installed here" in said
    assert "`pip uninstall penstock penstock-llm`" in said
    (info / "entry_points.txt").write_text(f"[console_scripts]\npenstock = {COMMAND}\n")
    assert main(("status", "--url", "http://127.0.0.1:9")) == 1
    assert "another project" not in capfd.readouterr().err


def test_help_is_quick_and_names_every_command() -> None:
    best = float("inf")
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, spent)
    for command in COMMANDS:
        assert re.search(rf"(?m)^    {command.name} +{re.escape(command.summary)}$", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 80
    # The time that the process computes: on a busy machine it may wait for longer than that.
    assert best < 0.2


def test_help_loads_no_command() -> None:
    code = (
        "import sys; from penstock.cli.main import main; main(['--help']); "
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "penstock.cli.main" in loaded
    assert not loaded & {"msgspec", "asyncio", "zmq", "tokenizers", "http.client", "numpy"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_says_what_it_does(command: Command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command.parser().format_help()
    assert text.startswith(f"usage: penstock {command.name}")
    assert command.parser().description
    shown, _, examples = text.partition("Examples:")
    assert max(map(len, shown.splitlines())) <= 80
    for line in examples.splitlines():
        assert not line.strip() or "penstock" in line or command.name == "completion"


def example_words(command: Command) -> list[list[str]]:
    """What the examples of its help give to the command, as a shell would split them."""
    text = command.parser().format_help().partition("Examples:")[2]
    found = []
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        while "penstock" in words:
            words = words[words.index("penstock") + 1 :]
            ends = (place for place, word in enumerate(words) if re.match(r"[|;>]|>/", word))
            found.append([word.rstrip(";") for word in words[: next(ends, len(words))]])
    return found


EXAMPLES = [words for command in COMMANDS for words in example_words(command)]


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_examples_can_be_typed(words: list[str]) -> None:
    name, *rest = words
    BY_NAME[name].parser().parse_args(rest)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 20


def test_words_may_stand_behind_flags_and_begin_with_a_dash() -> None:
    parser = BY_NAME["run"].parser()
    for words in (["m", "--raw", "1, 2"], ["--raw", "m", "--seed", "1", "1, 2"], ["m", "1, 2"]):
        assert parser.parse_args(words).words == ["m", "1, 2"]
    for words in (["m", "--raw", "--", "-5 is"], ["--", "m", "-5 is"]):
        assert parser.parse_args(words).words == ["m", "-5 is"]


def test_help_of_a_command_in_both_ways() -> None:
    assert run("help", "status").stdout == run("status", "--help").stdout != ""
    assert run("help").stdout == run("--help").stdout


def test_the_installed_command_is_the_module() -> None:
    script = Path(sys.executable).with_name("penstock")
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == run("--version").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fly",), "there is no command 'fly'"),
        (("serv",), "did you mean 'serve'?"),
        (("--fly",), "there is no flag --fly"),
        (("serve", "--port", "99999"), "--port: '99999' is not allowed; expected a whole number"),
        (("serve", "--max-num", "3"), "there is no flag --max-num; did you mean --max-num-seqs?"),
        (
            ("serve", "--ctx-size", "9"),
            "there is no flag --ctx-size; did you mean --max-model-len?",
        ),
        (("serve", "-ngl", "9"), "there is no flag -ngl; did you mean --device?"),
        (("serve", "-c", "4096"), "there is no flag -c; did you mean --max-model-len?"),
        (("serve", "-m", "a.gguf"), "there is no flag -m; did you mean --model?"),
        (("serve", "-np", "4"), "there is no flag -np; did you mean --max-num-seqs?"),
        (("run", "m", "x", "--n-predict", "9"), "did you mean --max-tokens?"),
        (("start", "m"), "there is no command 'start'; did you mean 'serve'?"),
        (("ps",), "did you mean 'status'?"),
        (("serve", "--tokenizer-mode", "slow"), "tokenizer_mode: 'slow' is not supported here"),
        (("serve", "--api-key", ""), "--api-key is empty"),
        (("serve", "a", "b", "--no-http"), "--no-http is for one model"),
        (("run",), "MODEL is missing"),
        (("run", "smollm2-135m", ""), "the prompt is empty"),
        (("run", "smollm2-135m", "x", "--temperature", "-1"), "temperature must be a number in"),
        (("run", "--url", "nonsense", "x"), "'nonsense' is no URL like"),
        (("run", "--url", "http://h", "--dtype", "float32", "x"), "--dtype is for an engine that"),
        (("chat", "m", "--url", "http://h"), "give one of them"),
        (("top", "--interval", "0"), "--interval must lie in 0.1 to 3600"),
        (("bench",), "KIND"),
        (("bench", "latency", "m", "--input-len", "0"), "input_len must be at least 1"),
        (("bench", "serve", "--concurrency", "0"), "concurrency must be in [1, 20000]"),
        (("completion", "tcsh"), "invalid choice: 'tcsh'"),
        (("pull", ""), "MODEL is empty"),
        (("serve", "a", "--model", "b"), "two models were named, 'a' and --model 'b'"),
        (("serve", "--config", "/no/such/file"), "/no/such/file: No such file"),
        # No process has as many files open as that.
        (("serve", "--report-fd", "2147483647"), "--report-fd 2147483647: no such file"),
        (("engine",), "--model-dir"),
        (("prepare", ""), "MODEL is empty"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_why(
    arguments: tuple[str, ...], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process: one that starts takes a third of a second, and the next test starts one."""
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(arguments))  # argparse exits by itself
    shown = capfd.readouterr()
    assert ended.value.code == 2
    assert words in shown.err
    assert shown.out == ""


def test_the_command_alone_says_what_there_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(()) == 2
    assert capfd.readouterr().out == run("--help").stdout


def test_one_word_and_no_prompt_says_what_the_word_was_taken_for(capfd, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(("run", "hello")) == 2
    said = capfd.readouterr().err
    assert "'hello' is taken for the MODEL, and stdin is empty" in said
    assert "`penstock run MODEL hello`" in said


def test_chat_without_a_server_says_how_to_start_one(capfd, monkeypatch) -> None:
    monkeypatch.setattr("penstock.cli.http_client.DEFAULT_URL", "http://127.0.0.1:9")
    assert main(("chat",)) == 1
    said = capfd.readouterr().err
    assert "nobody answers at http://127.0.0.1:9" in said
    assert "`penstock serve` starts a server there, `penstock chat MODEL` needs none" in said
    assert main(("chat", "--url", "http://127.0.0.1:9")) == 1
    assert "penstock serve" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("smolm2-135m", "smollm2-135m"),
        ("all-minilm-l6v2", "all-minilm-l6-v2"),
        ("qwen3:8b", "Qwen/Qwen3-8B-GGUF"),
        ("gemma3:4B", "ggml-org/gemma-3-4b-it-GGUF"),
        ("llama3.2:3b-instruct-q4_K_M", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
    ],
)
def test_a_model_that_was_meant_is_named(written: str, meant: str, capfd) -> None:
    assert main(("pull", written)) == 1
    assert f"did you mean {meant}?" in capfd.readouterr().err


def test_a_word_that_is_no_model_starts_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Beside a model that there is, too: it may be an argument that was meant otherwise."""
    assert main(("serve", "smollm2-135m", "9000")) == 1
    assert "there is no model '9000'" in capfd.readouterr().err


def test_wrong_usage_of_a_process() -> None:
    done = run("serve", "--port", "99999")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--port: '99999' is not allowed; expected a whole number" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_usage_error_reaches_the_report_pipe() -> None:
    reading, writing = os.pipe()
    done = subprocess.run(
        [*PENSTOCK, "serve", "a", "--model", "b", "--report-fd", str(writing)],
        pass_fds=[writing],
        capture_output=True,
        timeout=60,
        check=False,
    )
    os.close(writing)
    with os.fdopen(reading) as report:
        assert "two models were named" in report.read()
    assert done.returncode == 2


def test_the_reference_lists_every_command() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "commands.md"
    text = page.read_text(encoding="utf-8")
    for command in COMMANDS:
        found = re.search(rf"^## penstock {command.name}\n\n\w", text, re.MULTILINE)
        assert (found is None) == (command.name in BY_SUPERVISOR_ALONE), command.name
