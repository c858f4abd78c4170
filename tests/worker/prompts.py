"""Prompts for the comparison with transformers: languages, code, chat, noise; 1 to 1,500 tokens."""

from __future__ import annotations

STORY = (
    "The old lighthouse keeper climbed the stairs every evening, counting the steps aloud. "
    "On the hundred and ninth step he always stopped, looked out over the grey water, and "
    "wondered who had built the tower, and for whom. Ships passed far out; none ever called. "
)
CODE = (
    "def merge_sort(items):\n    if len(items) < 2:\n        return items\n"
    "    middle = len(items) // 2\n    left, right = merge_sort(items[:middle]), "
    "merge_sort(items[middle:])\n    merged = []\n    while left and right:\n"
    "        merged.append(left.pop(0) if left[0] <= right[0] else right.pop(0))\n"
    "    return merged + left + right\n\n\n"
)

TEXTS = [
    "A",
    "Once upon a time",
    "The capital of France is",
    "1, 2, 3, 5, 8, 13,",
    "def fibonacci(n):\n    ",
    "SELECT name, COUNT(*) FROM orders WHERE",
    '{"name": "Ada", "born": 1815, "languages": [',
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0;",
    "La capitale de la France est",
    "Der schnelle braune Fuchs springt über den faulen Hund, und dann",
    "El perro de San Roque no tiene rabo porque",
    "Il mattino ha l'oro in bocca: così diceva mia nonna, e",
    "Съешь же ещё этих мягких французских булок, да",
    "日本の首都は東京です。京都は",
    "床前明月光，疑是地上霜。举头望明月，",
    "안녕하세요! 오늘 날씨가",
    "مرحبا بالعالم، هذا",
    "Η γρήγορη καφέ αλεπού",
    "\n\n\n   \t  ",
    "🙂🙃 emoji and zero\u200bwidth \x00 bytes",
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nName three "
    "rivers of Europe.<|im_end|>\n<|im_start|>assistant\n",
    "$$\\int_0^\\infty e^{-x^2}\\,dx = ",
    STORY * 2,
    CODE * 2,
    STORY * 6,
]
LONG = [("code", CODE, 600), ("both", STORY + CODE, 1500)]
"""(name, text to repeat, tokens)."""
