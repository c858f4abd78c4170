"""What pictures cost a server, those who show none, and other systems."""
