"""The possible contents of a disk after power loss or corruption at rest: pure functions over recordings."""
