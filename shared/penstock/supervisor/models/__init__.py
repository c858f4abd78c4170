"""Several models: which are loaded, which make way, and the processes of each."""
