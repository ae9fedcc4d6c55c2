"""Weight formats of the experts of a mixture."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.faults import BadModel
from penstock.quant.groups import GroupIndex
from penstock.quant.method import LinearMethod, StacksExperts, WeightTensor


def stacks_experts(method: LinearMethod, tensors: Mapping[str, WeightTensor]) -> StacksExperts:
    """Returns `method` if it can keep many experts; `tensors` are those of one expert's matrix.

    Raises BadModel if it cannot.
    """
    if not isinstance(method, StacksExperts):
        raise BadModel(
            f"the weight format {type(method).__name__} is not supported for mixtures of experts; "
            "use a checkpoint in another format, or an unquantized one"
        )
    for name, tensor in tensors.items():
        if isinstance(tensor.form, GroupIndex) and tensor.form.any_order:
            raise BadModel(
                f"config.json: quantization_config makes groups of inputs in any order ({name}; "
                "desc_act or actorder), which is not supported for mixtures of experts"
            )
    return method
