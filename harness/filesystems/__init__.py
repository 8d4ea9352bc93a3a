"""Real file systems in image files, where root may mount them: what the model of power loss is held against."""
