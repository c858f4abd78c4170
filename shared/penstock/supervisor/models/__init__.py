"""Several models: who is loaded, who makes way, and the processes of each."""
