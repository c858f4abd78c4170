"""What computes each form of tower that hears; one is found once a module here defines it."""
