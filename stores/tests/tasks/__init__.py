"""The promises of a task, one file per kind of promise; ``setup`` creates the tasks."""
