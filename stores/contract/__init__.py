"""The parts of the contract in ``stores.interface``: a store's life, its levels, readers and iterators, and marks."""
