"""What a disk may hold after the power was lost, or after it rotted: pure functions over recordings."""
