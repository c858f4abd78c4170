"""/v1/conversations, as in OpenAI's API."""
