"""Readers beside a writer: whether what each of them sees was ever there, judged against the writer's own history."""
