"""What `ps -o args` shows for our processes."""

from __future__ import annotations

import setproctitle


def set_title(role: str) -> None:
    """Names this process: `set_title("gateway 0")` shows as `penstock: gateway 0`."""
    setproctitle.setproctitle(f"penstock: {role}")
