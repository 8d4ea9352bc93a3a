"""When a task commits, punctuates and retries: its clock, commit interval, schedules, stream time and timeout."""
