"""Tasks: a function over records with stores that survive any crash in step with their changelogs."""

from stores.config import StoreConfig as StoreSettings
from stores.interface import ProcessingGuarantee
from stores.tasks.context import TaskContext
from stores.tasks.identifier import TaskId
from stores.tasks.restore import RestoreProgress, RestoreReport
from stores.tasks.task import StreamTask

__all__ = [
    "ProcessingGuarantee",
    "RestoreProgress",
    "RestoreReport",
    "StoreSettings",
    "StreamTask",
    "TaskContext",
    "TaskId",
]
