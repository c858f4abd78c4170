"""Processes that a test started, by a word of their command lines."""

from __future__ import annotations

import contextlib

import psutil


def descendants(word: str) -> list[psutil.Process]:
    """This process's living descendants whose command line, or title, has the word in it.

    What has ended, and only waits for someone to ask how, is no longer one: it has no command
    line, and psutil raises where it is asked for.
    """
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a zombie is an error of this kind
            if word in " ".join(process.cmdline()):
                found.append(process)
    return found
