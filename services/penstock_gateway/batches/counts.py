"""What a process has done with the lines of batches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LineCounts:
    """Since the process began."""

    completed: int = 0
    """Answered with 200."""
    failed: int = 0
    """Answered with an error."""
    refused: int = 0
    """Answers that said later; the line is asked again."""
    open: int = 0
    """Being answered now."""
