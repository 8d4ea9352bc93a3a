"""The experiments, a module or a folder each; ``registry`` lists them."""
