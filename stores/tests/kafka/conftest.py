"""The broker of the session."""

from stores.tests.kafka.shared_broker import broker  # noqa: F401
