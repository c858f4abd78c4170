"""The states of sequences in recurrent layers: live ones by batch slot, and checkpoints of them."""
