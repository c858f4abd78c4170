"""`python -m testing.trained.seeing.measure`: how often it is right on unseen pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from penstock import LLM, SamplingParams
from testing.trained.seeing import FOLDER
from testing.trained.seeing.exam import LONGEST, Task, left_out, parts, right, whole


def answers(llm: LLM, tasks: list[Task]) -> list[str]:
    """What the model says, greedily."""
    talks: list[Any] = [
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_pil", "image_pil": task.picture},
                    {"type": "text", "text": task.question},
                ],
            }
        ]
        for task in tasks
    ]
    params = SamplingParams(temperature=0, max_tokens=LONGEST)
    return [each.outputs[0].text for each in llm.chat(talks, params, use_tqdm=False)]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--folder", type=Path, default=FOLDER)
    flags.add_argument("--pictures", type=int, default=200)
    given = flags.parse_args()
    with LLM(str(given.folder), max_model_len=512, num_kv_blocks=512) as llm:
        for name, tasks in (
            ("what is in it", whole(given.pictures)),
            ("kinds that training left out", left_out(whole(3 * given.pictures))),
            ("how many, which colour, which shape", parts(given.pictures)),
        ):
            said = answers(llm, tasks)
            count = right(tasks, said)
            print(f"{name}: {count} of {len(tasks)} right ({count / len(tasks):.1%})")
            for task, words in zip(tasks, said, strict=True):
                if words != task.answer:
                    print(f"    {task.answer!r}, and it said {words!r}")


if __name__ == "__main__":
    main()
