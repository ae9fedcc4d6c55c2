"""Limits of sampling parameters, and the device tensors that hold them."""
