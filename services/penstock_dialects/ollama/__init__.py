"""Ollama's API: /api/chat, /api/generate, /api/embed, and what is served."""
