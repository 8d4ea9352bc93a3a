"""The experiments, one folder each; ``registry`` lists them."""
