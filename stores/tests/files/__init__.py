"""A store's files besides its engine's."""
