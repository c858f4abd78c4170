"""Steps: how one is begun, computed and reported, whatever the model computes."""
