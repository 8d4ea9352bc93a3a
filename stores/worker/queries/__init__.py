"""Queries of a worker's stores by other processes, over HTTP (the extra ``http``).

``endpoint.py`` is what a worker starts, ``server.py`` is HTTP, ``store_queries.py`` answers, ``query_request.py`` reads
one kind of store, and ``access.py`` finds the worker that has a partition.
Source: Kafka Streams, "Interactive Queries"; KIP-796 for position bounds; KIP-892 for isolation levels.
"""
