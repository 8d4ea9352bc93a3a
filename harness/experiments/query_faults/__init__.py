"""The experiment that breaks Spark under a stateful query, and compares its rows and its state with Spark SQL."""
