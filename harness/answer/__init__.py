"""The parts of a report that span experiments: the pick of a backend, what a run has proven, and all pages."""
