"""Everything that a sequence waits for: its turn, its grammar, remote KV blocks, its deadline."""
