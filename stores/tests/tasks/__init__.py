"""What a task promises: one file per kind of promise; ``setup`` makes the tasks that they look at."""
