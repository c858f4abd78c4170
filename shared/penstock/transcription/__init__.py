"""Speech to text: a recording cut into windows, each decoded, and put together again."""
