"""What every changelog promises, on each of the embedded ones, and what only the one in a file does."""
