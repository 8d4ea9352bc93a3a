"""What every backend promises, as tests: run them on one of your own with

    python -m stores.tests.conformance --backend NAME

where NAME is registered by an entry point of the group ``stores.backends``. Nothing is skipped: what a backend says of
itself (``transactional``, ``manages_offsets``, ``persistent``) chooses which promise is tested, and each has one. What
such a backend need not carry of isolation and positions stands in ``gaps``, with the reason and what it does instead.
"""
