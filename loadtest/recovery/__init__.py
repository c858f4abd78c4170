"""What many open requests see of an engine core that dies, and of processes that stand still."""
