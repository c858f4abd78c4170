"""What outlives a process: records in a database, contents in files."""
