"""The configuration of an application's tasks, as one value; also read from properties with Kafka's names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from stores.changelog.interface import Changelog
from stores.changelog.partitioners import PARTITIONERS, partitioner_named
from stores.config import STORE_PROPERTIES, StoreConfig
from stores.contract.arguments import check_seconds
from stores.declarations import Stores, configurations
from stores.errors import ConfigError
from stores.files.store_directory import checked_path
from stores.interface import ProcessingGuarantee, TopicPartition
from stores.registry import backend_named, member
from stores.settings import ANY_NUMBER, SAME, TRUE_OR_FALSE, Known, Properties, Property, boolean, one_of, read
from stores.snapshots.settings import CPU_SHARE, INTERVAL_MS, KEEP, Snapshots
from stores.tasks.context import BatchFunction, InitFunction, ProcessFunction
from stores.tasks.directory.state_directory import StateDirectory, Watch
from stores.tasks.directory.unnamed_stores import clean_stores, kept_homes
from stores.tasks.identifier import Home, TaskId, check_application
from stores.tasks.offset_reset import PROPERTY, OffsetReset
from stores.tasks.settings import NOTHING_SHARED, SharedResources, TaskSettings
from stores.tasks.stores.store_metrics import RecordingLevel
from stores.tasks.task import StreamTask
from stores.tasks.topology import Topology
from stores.topic import Topic

STATE_CLEANUP_DELAY_S = 600.0
"""Source: Kafka Streams, default of ``state.cleanup.delay.ms``."""


@dataclass(frozen=True)
class TaskConfig(TaskSettings):
    """The settings that all tasks of an application on one machine share; checked when it is made.

    Raises: ConfigError, TypeError.
    """

    application_id: str
    state_dir: Path
    """The folder of this application alone."""
    guarantee: ProcessingGuarantee = field(default=ProcessingGuarantee.EXACTLY_ONCE, kw_only=True)
    state_cleanup_delay_s: float = field(default=STATE_CLEANUP_DELAY_S, kw_only=True)
    """The time after which ``clean`` removes the folder of an unused task."""
    store: StoreConfig = field(default_factory=StoreConfig, kw_only=True)
    """The configuration of stores whose declarations have none; a description and a backend's name replace a part."""
    transactional: bool | None = field(default=None, kw_only=True)
    """True if all stores must isolate uncommitted writes, False if none may; None allows both."""

    def __post_init__(self) -> None:
        check_application(self.application_id)
        checked_path(self.state_dir)
        member(ProcessingGuarantee, "processing guarantee", self.guarantee)
        super().__post_init__()
        check_seconds("state_cleanup_delay_s", self.state_cleanup_delay_s)

    @classmethod
    def from_properties(cls, properties: Properties, topology: Topology | None = None) -> Self:
        """Return a configuration from properties: those of ``StoreConfig.from_properties``, and Kafka's for a task.

        ``application.id`` and ``state.dir`` are required. As in Kafka, the application gets a folder below
        ``state.dir``. Unlike in Kafka, the default guarantee is exactly once.

        Raises: TypeError; ConfigError for an unknown name, with the nearest known one; for a property without
        counterpart here, with the reason; and for a value that does not fit or contradicts another one.
        """
        settings, options = read(properties, {**TASK_PROPERTIES, **STORE_PROPERTIES}, StoreConfig.OPTION)
        for name in ("application_id", "state_dir"):
            if name not in settings:
                raise ConfigError(f"property {name.replace('_', '.')} is missing: add it")
        for name, (allowed, reason) in _REFUSED.items():
            if settings.pop(name, allowed) != allowed:
                raise ConfigError(f"property {name} can't be {properties[name]}: {reason}")
        check_application(settings["application_id"])
        checked_path(settings["state_dir"])
        settings["state_dir"] = Path(settings["state_dir"]) / settings["application_id"]
        snapshots = _snapshots(settings)
        of_task = {known.setting for known in TASK_PROPERTIES.values()}
        mine = {setting: value for setting, value in settings.items() if setting in of_task}
        of_store = {setting: value for setting, value in settings.items() if setting not in of_task}
        if "processing_guarantee" in settings:
            mine["guarantee"] = settings["processing_guarantee"]
        return cls(
            **mine,
            topology=topology,
            snapshots=snapshots,
            store=StoreConfig.from_settings(of_store, options),
            transactional=of_store.get("transactional"),
        )

    def stores(self, stores: Stores) -> dict[str, StoreConfig]:
        """Return the configurations of a task's stores. ``store`` has what a declaration does not say.

        Raises: TypeError for what declares no store; ConfigError if a store contradicts ``transactional``.
        """
        configs = configurations(stores, self.store)
        for name, config in configs.items():
            if self.transactional is not None and backend_named(config.backend).transactional != self.transactional:
                raise ConfigError(
                    f"enable.transactional.statestores={str(self.transactional).lower()} applies to all stores, and "
                    f"store {name!r} is a {config.backend}: choose another backend for it, or drop the property"
                )
            if config.upgrade is not None and config.upgrade_mode is None:
                configs[name] = replace(config, upgrade_mode=self.store.upgrade_mode)
        return {name: replace(config, processing_guarantee=self.guarantee) for name, config in configs.items()}

    def task(
        self,
        task_id: TaskId,
        *,
        changelog: Changelog,
        stores: Stores,
        process: ProcessFunction | None = None,
        process_batch: BatchFunction | None = None,
        inputs: Sequence[TopicPartition | Topic[Any, Any]],
        init: InitFunction | None = None,
        shared: SharedResources = NOTHING_SHARED,
        **settings: Any,
    ) -> StreamTask:
        """Make a task of the application; ``settings`` replace some of these for it. Raises: as ``StreamTask``."""
        config = replace(self, **settings)
        return StreamTask(
            config.application_id,
            task_id,
            state_dir=config.state_dir,
            changelog=changelog,
            stores=config.stores(stores),
            process=process,
            process_batch=process_batch,
            inputs=inputs,
            init=init,
            settings=config,
            shared=shared,
        )

    def clean(self, watch: Watch | None = None, spared: Collection[Home] = ()) -> list[Home]:
        """Remove the folders of tasks not used for ``state_cleanup_delay_s``: see ``StateDirectory.clean``.

        It also removes stores that no task opens, once they were kept for that time: see ``clean_stores``. Until then
        their folders stay. With a ``watch``, that one decides by what it has seen, and no time of files counts.
        """
        state = StateDirectory(Path(self.state_dir))
        older_than = self.state_cleanup_delay_s if watch is None else watch
        if self.topology is None:
            return state.clean(older_than, spared)
        clean_stores(state, self.topology, older_than)
        return state.clean(older_than, {*spared, *kept_homes(state, self.topology)})


def _snapshots(settings: dict[str, Any]) -> Snapshots | None:
    """Take the settings of snapshots out of ``settings``. Raises: ConfigError."""
    given = {name: settings.pop(setting) for name, setting in _OF_SNAPSHOTS.items() if setting in settings}
    if given and "location" not in given:
        raise ConfigError("properties of snapshots need snapshot.dir, which says where they are: add it, or drop them")
    return Snapshots(**given) if given else None


_OF_SNAPSHOTS: Mapping[str, str] = {
    "location": "snapshot_dir",
    "put_if_absent": "snapshot_put_if_absent",
    "interval_ms": "snapshot_interval_ms",
    "keep": "snapshot_keep",
    "cpu_share": "snapshot_cpu_share",
}


def _function(text: str) -> Callable[..., Any]:
    """Return the function that ``MODULE:NAME`` names. Raises: ConfigError; the errors of the module itself."""
    module_name, _, name = text.partition(":")
    if not name or not all(module_name.split(".")):
        raise ValueError(text)
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}: correct the name, or put the module on the path of Python") from error
    if not callable(found):
        raise ConfigError(f"the module {module_name!r} has no function {name!r}")
    function: Callable[..., Any] = found
    return function


def _seconds(text: str) -> float:
    milliseconds = int(text)
    if milliseconds < 0:
        raise ValueError(text)
    return milliseconds / 1_000


_TIME = "a whole number from 0"
_ONLY_LOGS = "none: Kafka Streams restores from changelogs only"
TASK_PROPERTIES: Known = {
    "application.id": Property(
        "application_id", str, "a name", "the name of the application", SAME, default="the name of the Application"
    ),
    "state.dir": Property(
        "state_dir",
        str,
        "a folder",
        "the folder of the stores, which workers of one machine may share",
        "the same name, with a default in the folder for temporary files",
        default="required",
    ),
    "commit.interval.ms": Property(
        "commit_interval_ms",
        int,
        "a whole number from 0, or -1 for none",
        "the time between two commits",
        SAME,
        "ms",
        "100 under exactly once, else 30,000",
    ),
    "automatic.state.relocation": Property(
        "automatic_state_relocation",
        boolean,
        TRUE_OR_FALSE,
        "true moves stores to the tasks of a changed topology when a task opens",
        "the same name (KIP-816)",
    ),
    "partitioner": Property(
        "partitioner",
        partitioner_named,
        one_of(PARTITIONERS),
        "the partitioner of outputs by their keys",
        "none: a sink has its `StreamPartitioner`",
    ),
    "metrics.recording.level": Property(
        "recording_level",
        RecordingLevel,
        one_of(RecordingLevel),
        "DEBUG records the latencies of get, put, scan and commit as histograms",
        SAME,
    ),
    PROPERTY: Property(
        "auto_offset_reset",
        OffsetReset,
        one_of(OffsetReset),
        "the place at which an input begins without a committed offset, or continues if its offset is gone",
        "the same name, with the default earliest",
        default="not set: the first offset, and an error after it is gone",
    ),
    "task.timeout.ms": Property(
        "task_timeout_s",
        _seconds,
        _TIME,
        "the time for which a changelog that does not answer is asked again",
        SAME,
        "ms",
    ),
    "state.cleanup.delay.ms": Property(
        "state_cleanup_delay_s", _seconds, _TIME, "the time after which files that nobody uses are removed", SAME, "ms"
    ),
    "snapshot.dir": Property(
        _OF_SNAPSHOTS["location"],
        str,
        "a folder, or a URI of pyarrow.fs",
        "the place of snapshots by files, which all workers share: a lost store begins there",
        _ONLY_LOGS,
        default="not set: none are taken",
    ),
    "snapshot.put.if.absent": Property(
        _OF_SNAPSHOTS["put_if_absent"],
        _function,
        "MODULE:NAME",
        "the function that puts an object unless there is one: for an object store",
        _ONLY_LOGS,
        default="not set",
    ),
    "snapshot.interval.ms": Property(
        _OF_SNAPSHOTS["interval_ms"],
        int,
        _TIME,
        "the least time between two snapshots of a store",
        _ONLY_LOGS,
        "ms",
        f"{INTERVAL_MS:,}",
    ),
    "snapshot.keep": Property(
        _OF_SNAPSHOTS["keep"],
        int,
        "a whole number from 1",
        "the snapshots of each store that are kept",
        "none",
        default=str(KEEP),
    ),
    "snapshot.cpu.share": Property(
        _OF_SNAPSHOTS["cpu_share"],
        float,
        "a number above 0",
        "the share of one processor that the process sends snapshots with",
        "none",
        default=str(CPU_SHARE),
    ),
    "num.standby.replicas": Property("num.standby.replicas", int, ANY_NUMBER, "only 0", SAME),
    "num.stream.threads": Property("num.stream.threads", int, ANY_NUMBER, "only 1", SAME),
    "bootstrap.servers": Property("bootstrap.servers", str, "addresses", "refused", SAME),
}
"""The properties of tasks. The last three only have the values that mean nothing for a task without a worker."""
_REFUSED: Mapping[str, tuple[object, str]] = {
    "num.standby.replicas": (
        0,
        "a worker (stores.worker) keeps standby copies. A task of your own does so by StreamTask.standby()",
    ),
    "num.stream.threads": (1, "a task runs on the thread that calls it. Open tasks in threads of your own"),
    "bootstrap.servers": (None, "a task is given its changelog as an object"),
}
"""Properties of Kafka Streams without counterpart here: the one value that is accepted, and the reason."""
