"""Receipts: what an answer was computed from, signed with the server's key. `desk` writes them,
`endpoint` tells the public key."""
