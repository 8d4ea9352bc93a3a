"""A changelog for tasks that are watched."""

from stores.tests.tasks.conftest import log

__all__ = ["log"]
