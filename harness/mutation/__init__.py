"""Small changes of the code, drawn by a seed, and whether a test detects each (``make mutate``)."""
