"""Tasks: functions over records, with stores that stay in step with their changelogs through any crash."""

from stores.config import StoreConfig
from stores.interface import ProcessingGuarantee
from stores.settings import Upgrade, UpgradeMode, UpgradeProgress
from stores.tasks.config import TaskConfig
from stores.tasks.context import TaskContext
from stores.tasks.directory.placement import stored_offsets
from stores.tasks.directory.relocation import Relocation, change_layout, relocate
from stores.tasks.directory.state_directory import StateDirectory, most_caught_up_first, offset_sum
from stores.tasks.directory.store_places import DirectoryLayout
from stores.tasks.global_copy import GlobalStore
from stores.tasks.global_stores import GlobalStores
from stores.tasks.identifier import StorePartition, TaskId
from stores.tasks.memory_budget import BudgetShare, MemoryBudget
from stores.tasks.on_error import DeadLetterTopic, OnError
from stores.tasks.record_batch import Batch
from stores.tasks.settings import SharedResources, TaskSettings
from stores.tasks.stores.log_follower import RestoreProgress, RestoreReport
from stores.tasks.task import StreamTask
from stores.tasks.task_transaction import ThreadTransaction
from stores.tasks.timing import NO_INTERVAL, PunctuationType, Schedule
from stores.tasks.topology import Subtopology, Topology
from stores.topic import Topic

__all__ = [
    "NO_INTERVAL",
    "Batch",
    "BudgetShare",
    "DeadLetterTopic",
    "DirectoryLayout",
    "GlobalStore",
    "GlobalStores",
    "MemoryBudget",
    "OnError",
    "ProcessingGuarantee",
    "PunctuationType",
    "Relocation",
    "RestoreProgress",
    "RestoreReport",
    "Schedule",
    "SharedResources",
    "StateDirectory",
    "StoreConfig",
    "StorePartition",
    "StreamTask",
    "Subtopology",
    "TaskConfig",
    "TaskContext",
    "TaskId",
    "TaskSettings",
    "ThreadTransaction",
    "Topic",
    "Topology",
    "Upgrade",
    "UpgradeMode",
    "UpgradeProgress",
    "change_layout",
    "most_caught_up_first",
    "offset_sum",
    "relocate",
    "stored_offsets",
]
