"""/v1/messages/batches: Anthropic's batches, which the runner of OpenAI's works through."""
