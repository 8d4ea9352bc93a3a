"""Parts of the operating-system process that stores depend on: forks and file descriptors."""
