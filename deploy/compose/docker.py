"""The command lines of a container engine and of compose, v2 or docker-compose 1.29."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 900.0
"""Seconds that one command may take, builds aside."""


class Failed(Exception):
    """A command that didn't do what it should. Says which, and its last lines."""


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float = PATIENCE,
    show: bool = False,
) -> str:
    """stdout. show: let the user see it instead. Raises Failed."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=None if show else subprocess.PIPE,
            stderr=None if show else subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise Failed(f"there is no {command[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)}: not done after {timeout:g} s") from None
    if done.returncode:
        words = "" if show else "\n".join((done.stderr or done.stdout).splitlines()[-15:])
        raise Failed(f"{' '.join(command)} ended with {done.returncode}\n{words}")
    return done.stdout or ""


def docker(*words: str, timeout: float = PATIENCE) -> str:
    """`docker …`. Raises Failed."""
    return run(["docker", *words], timeout=timeout)


def inspect(*names: str) -> list[dict[str, Any]]:
    """What the engine knows about containers or images. Raises Failed."""
    return list(json.loads(docker("inspect", *names)))


def has_image(name: str) -> bool:
    """Whether the engine has the image, without a look at a registry."""
    try:
        docker("image", "inspect", name)
    except Failed:
        return False
    return True


@functools.cache
def compose_command() -> tuple[str, ...]:
    """`docker compose` where there is one, else `docker-compose`. Raises Failed."""
    for command in (("docker", "compose"), ("docker-compose",)):
        try:
            run([*command, "version"], timeout=30)
        except Failed:
            continue
        return command
    raise Failed("neither `docker compose` nor `docker-compose` works on this machine")


@functools.cache
def builder_environment() -> dict[str, str]:
    """BuildKit where it is installed, else the classic builder."""
    try:
        run(["docker", "buildx", "version"], timeout=30)
    except Failed:
        return {"DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "1"}
    return {}
