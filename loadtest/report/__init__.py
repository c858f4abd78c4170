"""What every measurement shares: its command line, and what it writes."""
