"""What computes each form of projector; one is found once a module here defines it."""
