"""The completion scripts, read by the shells that are here, and asked as a shell would ask."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from penstock.cli.commands import COMMANDS
from penstock.cli.completion import bash, fish, known, zsh

MAKERS = {"bash": bash, "zsh": zsh, "fish": fish}


def completions(*words: str) -> list[str]:
    """What bash would offer for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = (
        bash(list(known()))
        + f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _penstock; "
        + 'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", MAKERS)
def test_a_script_is_read_without_complaint_and_names_everything(shell: str) -> None:
    script = MAKERS[shell](list(known()))
    for command in COMMANDS:
        assert command.name in script
    for flag in ("max-num-seqs", "batch-size", "api-key-env"):
        assert flag in script
    assert "--no-enable-prefix-caching" not in script, "hidden flags stay hidden"
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True, timeout=30)


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("penstock", "s"), {"serve", "status", "simulate"}),
        (("penstock", "serve", "--max-num"), {"--max-num-seqs", "--max-num-batched-tokens"}),
        (("penstock", "serve", "--dtype", ""), {"auto", "bfloat16", "float32"}),
        (("penstock", "serve", "--dtype", "b"), {"bfloat16"}),
        (("penstock", "bench", ""), {"latency", "throughput", "serve"}),
        (("penstock", "bench", "latency", "--batch"), {"--batch-size"}),
        (("penstock", "bench", "serve", "--endpoint", "c"), {"chat", "completions"}),
        (("penstock", "completion", "z"), {"zsh"}),
        (("penstock", "run", "sm"), {"smollm2-135m"}),
        (("penstock", "run", "m", "--max-model"), {"--max-model-len"}),
        (("penstock", "chat", "--kv-cache-dtype", "in"), {"int8"}),
        (("penstock", "serve", "--model", "all"), {"all-minilm-l6-v2"}),
    ],
)
def test_what_is_offered(words: tuple[str, ...], some: set[str]) -> None:
    assert some <= set(completions(*words))


def test_files_are_offered_where_no_word_fits(tmp_path) -> None:
    (tmp_path / "model.gguf").touch()
    assert completions("penstock", "serve", f"{tmp_path}/mod") == [f"{tmp_path}/model.gguf"]
