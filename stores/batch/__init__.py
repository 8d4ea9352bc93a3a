"""The staged writes of a transaction in memory, in freezable layers, and the merge of sorted layers for scans."""
