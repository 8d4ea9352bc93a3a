"""A changelog for each test, as for those of tasks."""

from stores.tests.kafka.shared_broker import broker  # noqa: F401
from stores.tests.tasks.conftest import log  # noqa: F401
