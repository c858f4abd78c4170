"""What a device with a queue needs: marks in the queue, memory, and copies of KV blocks."""
