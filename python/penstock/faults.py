"""Errors meant for people: each says what is wrong (field, rule, value) and what to do about it."""

from __future__ import annotations


class Fault(Exception):
    """Base of all errors whose text may be shown to a user as it is."""


class BadSetting(Fault):
    """A setting of Load breaks a rule, or contradicts the model."""


class BadModel(Fault):
    """The model's files are missing, damaged or of a kind that this version cannot run."""


class TooLittleMemory(Fault):
    """The device cannot hold what the settings ask for."""


class LoadCancelled(Fault):
    """Whoever asked for it has left."""


class BadStep(Fault):
    """A step request that breaks the protocol: nothing of it was run."""
