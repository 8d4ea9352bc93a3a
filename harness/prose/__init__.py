"""A check of the project's prose: words that the glossary replaces, long sentences, and openings of docstrings."""
