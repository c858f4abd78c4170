"""What `penstock replay` does: replays files, and says of each what it found."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import InvalidRequest
from penstock_engine.record.framing import log_files
from penstock_engine.record.replay import Replayed, replay


def replay_all(names: list[str], show: Callable[[str], None]) -> bool:
    """Whether every decision was the recorded one; `show` gets lines as they are known.

    Raises InvalidRequest where a recording can't be read.
    """
    alike = True
    for path in log_files(names):
        try:
            done = replay(path)
        except OSError as error:
            raise InvalidRequest(f"{path}: {error.strerror}") from None
        alike = alike and done.difference is None
        show(_replayed(done))
    return alike


def _replayed(done: Replayed) -> str:
    words = f"{done.path}: {done.steps:,} steps, {done.records:,} records"
    notes = [] if done.torn is None else [f"the recording is truncated: {done.torn}"]
    if not done.same_program:
        notes.append(f"it was made by another version ({done.header.version})")
    difference = done.difference
    if difference is None:
        return "; ".join([f"{words}; all decisions are equal", *notes])
    return "\n".join(
        [
            "; ".join([f"{words}; then the decisions differ", *notes]),
            f"step {difference.step:,} of the file (record {difference.record:,}, engine clock "
            f"{difference.now:.6f} s): {', '.join(difference.parts)} differ",
            f"recorded:\n{difference.recorded}",
            f"replayed:\n{difference.replayed}",
        ]
    )
