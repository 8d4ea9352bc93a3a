"""Clock, commit interval, punctuation, timeout."""
