"""One script per library: it loads the model, then runs what it reads from its standard input."""
