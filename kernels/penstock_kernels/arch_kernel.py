"""A kernel for one architecture beside an op's portable one."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch

from .op import cannot_build, reason

log = logging.getLogger("penstock.kernels")


class ArchKernel:
    """A module whose `launch` does what an op's portable kernel does, on some devices, better.

    `launch` says whether it takes such arguments, having done the work if so. Where it cannot be
    built (it may name what only one architecture or one version of Triton has), the portable kernel
    stays, with one warning.
    """

    def __init__(self, module: str, applies: Callable[[torch.device], bool]) -> None:
        """`module` is imported at its first use, on a device that `applies` accepts."""
        self.module = module
        self.applies = applies
        self._broken = False

    def launch(self, device: torch.device, *args: Any) -> bool:
        """Whether the work is done."""
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
