"""The inputs of one step in one buffer."""
