"""The isolation of uncommitted writes."""
