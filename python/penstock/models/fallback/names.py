"""Names of tensors in checkpoints that the library's module calls otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def renamed(model: Any, names: Iterable[str]) -> dict[str, str]:
    """Returns the module's name of each tensor of a checkpoint that has another one there.

    Tensors that the library joins or splits keep their names. So do all where this version of it
    says nothing of names.
    """
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming
    except ImportError:
        return {}
    changes = [c for c in get_model_conversion_mapping(model) if isinstance(c, WeightRenaming)]
    found = {}
    for name in names:
        new = name
        for change in changes:
            new = change.rename_source_key(new)[0]
        if new != name:
            found[name] = new
    return found
