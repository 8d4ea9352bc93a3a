"""The stores of one task."""
