"""Records all inputs of a core, and replays them."""
