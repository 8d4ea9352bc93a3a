"""The worker: a process that shares the tasks of an application with others of its kind, and runs them.

    txstores worker MODULE:NAME --config FILE

or ``Application.run``. Over the embedded changelog or over Kafka: the configuration decides.
"""

from stores.topic import Topic
from stores.worker.definition import Processor
from stores.worker.worker import Application, Worker

__all__ = ["Application", "Processor", "Topic", "Worker"]
