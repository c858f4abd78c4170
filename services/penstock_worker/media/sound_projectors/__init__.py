"""What computes each form of a sound's projector; one is found once a module here defines it."""
