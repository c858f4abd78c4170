"""Steps on a device that works behind a queue: they are begun, and their results come later."""
