"""Receipts: what an answer was computed from, signed with the server's key. `desk` writes them,
`batch` signs those of a batch together, `endpoint` tells the public key."""
