"""Text on its way to and from token ids: tokenizer, chat template, detokeniser, stop strings."""
