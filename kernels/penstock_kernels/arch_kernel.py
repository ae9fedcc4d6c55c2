"""A kernel for one architecture, in addition to an op's portable kernel."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch

from .op import cannot_build, reason

log = logging.getLogger("penstock.kernels")


class ArchKernel:
    """A module whose `launch` replaces an op's portable kernel on some devices.

    `launch` returns False, without doing anything, if it does not support the arguments. If it
    cannot be built (it may need an architecture or a version of Triton), the portable kernel is
    used, with one warning.
    """

    def __init__(self, module: str, applies: Callable[[torch.device], bool]) -> None:
        """`module` is imported at its first use, on a device that `applies` accepts."""
        self.module = module
        self.applies = applies
        self._broken = False

    def launch(self, device: torch.device, *args: Any) -> bool:
        """Launches the kernel if it supports the arguments; returns whether it did."""
        if self._broken or not self.applies(device):
            return False
        try:
            return bool(importlib.import_module(self.module).launch(*args))
        except Exception as error:
            if not cannot_build(error):
                raise
            self._broken = True
            log.warning(
                "%s cannot be built here, so a portable kernel does its work, which takes up to "
                "twice as long: %s",
                self.module,
                reason(error),
            )
            return False
