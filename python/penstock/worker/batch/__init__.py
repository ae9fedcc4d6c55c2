"""Packs the inputs of one step into one buffer."""
