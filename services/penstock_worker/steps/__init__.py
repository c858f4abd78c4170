"""Steps: how one is started, computed and reported, for every kind of model."""
