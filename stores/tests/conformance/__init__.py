"""The promises of every backend, as tests. Run them on your own with

    python -m stores.tests.conformance --backend NAME

where NAME is registered by an entry point of the group ``stores.backends``. Nothing is skipped: what a backend declares
 (``transactional``, ``manages_offsets``, ``persistent``) chooses which promise is tested, and each has one. What
such a backend need not carry of isolation and positions stands in ``gaps``, with the reason and what it does instead.
"""
