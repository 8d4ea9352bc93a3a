"""The values and views of the contract in ``stores.interface``: partitions, isolation levels, iterators, marks."""
