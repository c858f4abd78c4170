"""The HTTP front end: OpenAI's endpoints over sessions with engine cores. Imports no torch."""
