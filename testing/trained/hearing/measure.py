"""`python -m testing.trained.hearing.measure`: how much it gets right of what it never heard."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from penstock import AsyncLLM
from testing.recordings import wav
from testing.trained.hearing import FOLDER
from testing.trained.hearing.exam import unheard, word_errors
from testing.trained.hearing.recordings import SpokenText


async def measure(llm: AsyncLLM, name: str, recordings: list[SpokenText]) -> None:
    whole = wrong = words = 0
    for each in recordings:
        heard = (await llm.transcribe(wav(each.samples))).text
        errors = word_errors(each.text, heard)
        whole, wrong, words = whole + (not errors), wrong + errors, words + len(each.words)
        if errors:
            print(f"    {each.text!r}, and it heard {heard!r}")
    print(
        f"{name}: {whole} of {len(recordings)} right ({whole / len(recordings):.1%}); of {words} "
        f"words {wrong} are wrong ({wrong / words:.2%})",
        flush=True,
    )


async def run(folder: Path, count: int) -> None:
    async with AsyncLLM(str(folder), num_kv_blocks=512) as llm:
        await measure(llm, "one digit", unheard(count, 1.2, 1))
        await measure(llm, "three digits", unheard(count, 3.0, 3))
        await measure(llm, "longer than a window", unheard(max(1, count // 10), 12.0))


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--folder", type=Path, default=FOLDER)
    flags.add_argument("--recordings", type=int, default=200)
    given = flags.parse_args()
    asyncio.run(run(given.folder, given.recordings))


if __name__ == "__main__":
    main()
