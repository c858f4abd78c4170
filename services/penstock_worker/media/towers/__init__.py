"""The implementation of each form of audio tower; one is found once a module here defines it."""
