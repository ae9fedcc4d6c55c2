"""Errors with messages for users: each names the field, the rule and the value, and a remedy."""

from __future__ import annotations


class Fault(Exception):
    """Base of all errors whose message may be shown to a user."""


class BadSetting(Fault):
    """A setting of Load breaks a rule, or contradicts the model."""


class BadModel(Fault):
    """The model's files are missing, damaged or of an unsupported kind."""


class Unsupported(BadModel):
    """A valid model with a feature that its native family lacks."""


class TooLittleMemory(Fault):
    """The device has too little memory for the settings."""


class LoadCancelled(Fault):
    """The client that requested the load has disconnected."""


class BadStep(Fault):
    """A step request that breaks the protocol. Nothing of it was run."""
