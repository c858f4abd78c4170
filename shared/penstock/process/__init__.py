"""What every process needs: logs, titles, memory, children, and tasks in processes apart."""
