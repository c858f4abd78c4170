"""llama-server's own endpoints: /completion, /infill, /props."""
