"""Readers beside a writer: a check that each answer was a state of the store, by the writer's own history."""
