"""A child that leaves when its parent dies, however the parent dies (Linux), and what `ps -o args`
shows for our processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import setproctitle

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int | None = None, signum: int = signal.SIGKILL) -> None:
    """Has the kernel send `signum` to this process when its parent is gone.

    parent_pid: the pid that the parent had when it started us.  If it died before this call, the
    kernel will never tell, so the signal is raised here.  None: the present parent's.

    The kernel ties this to the parent's *thread*: the signal also comes when the thread that
    started us ends.  So call it only in children that were started from a thread that lives as
    long as its process (our supervisor starts its children from its main thread).
    """
    if sys.platform != "linux":
        return
    expected = os.getppid() if parent_pid is None else parent_pid
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signum), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    if os.getppid() != expected:
        os.kill(os.getpid(), signum)


def set_title(role: str) -> None:
    """Names this process: `set_title("gateway 0")` shows as `penstock: gateway 0`."""
    setproctitle.setproctitle(f"penstock: {role}")
