"""Pictures, sounds and videos of prompts: which of them workers have, and what their encoding
takes."""
