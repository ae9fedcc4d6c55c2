"""Checkpoints of AutoRound (arXiv:2309.05516), in the layouts of GPTQ and of AWQ.

Modules inside the blocks that config.json names are quantized; `extra_config` gives single ones, by
name or regular expression, other settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from penstock.quant.awq import Awq
from penstock.quant.calibration import AUTO_ROUND
from penstock.quant.gptq import Gptq, GptqLayout
from penstock.quant.gptq_rules import RuledMethods
from penstock.quant.groups import Grouping
from penstock.quant.method import LinearMethod
from penstock.quant.methods import Methods
from penstock.quant.settings import Settings
from penstock.quant.unquantized import Plain

BLOCKS = "block_name_to_quantize", "to_quant_block_names"
OWN, GPTQ, GPTQMODEL, AWQ = "", "auto_gptq", "gptqmodel", "auto_awq"
LAYOUTS = {OWN: OWN, GPTQ: GPTQ, "gptq": GPTQ, GPTQMODEL: GPTQMODEL, AWQ: AWQ, "awq": AWQ}
"""Per name in `packing_format`, the layout; the library's own one has no name."""
KERNELS = {"exllamav2", "marlin", "triton", "tritonv2"}
"""Names in `packing_format` that change nothing that is stored."""


def read_auto_round(config: Mapping[str, Any], plain: Plain) -> Methods:
    """quant_method "auto-round", or "intel/auto-round" of versions before 0.5."""
    settings = Settings(config)
    settings.skip("quant_method", "extra_config", *AUTO_ROUND)
    layout, blocks = _layout(settings), _blocks(settings)
    usual = _method(settings, layout, plain)
    settings.done()
    rules = _rules(settings, config, layout, plain)
    if blocks:
        inside = "|".join(map(re.escape, blocks))
        rules.append((re.compile(rf"(?!(?:{inside}))"), plain))
    else:
        rules.append((re.compile("lm_head$"), plain))
    return RuledMethods(plain, usual, rules=tuple(rules))


def _layout(settings: Settings) -> str:
    """From `packing_format`, or from `backend`, where older versions have it."""
    backend = settings.get("backend", "auto")
    older = isinstance(backend, str) and backend.startswith("auto_round")
    packing = settings.get("packing_format", backend if older else f"auto_round:{GPTQ}")
    first, *names = packing.split(":") if isinstance(packing, str) else [""]
    names = [name for name in names if name not in KERNELS] or [OWN]
    if first != "auto_round" or len(names) > 1 or names[0] not in LAYOUTS:
        known = ", ".join(repr(f"auto_round:{name}".rstrip(":")) for name in LAYOUTS)
        raise settings.error(f"packing_format {packing!r} is not supported; supported: {known}")
    return LAYOUTS[names[0]]


def _blocks(settings: Settings) -> list[str]:
    """What the paths of quantized modules begin with; none: all modules but the head."""
    found = [settings.get(name) for name in BLOCKS]
    value: Any = next((one for one in found if one is not None), [])
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise settings.error(f"{BLOCKS[0]} must be names of blocks, found {value!r}")
    return [name.strip() for name in names]


def _method(settings: Settings, layout: str, plain: Plain) -> LinearMethod:
    """The method of modules with these settings."""
    settings.choice("data_type", ("int",), "int")
    settings.choice("act_bits", (16, 32), 16)
    bits = settings.choice("bits", (4,) if layout == AWQ else (4, 8))
    symmetric = settings.choice("sym", (True, False), True)
    grouping = Grouping.read(settings, "group_size")
    if layout == AWQ:
        return Awq(plain, grouping, symmetric)
    stored = GptqLayout(
        bits,
        grouping,
        less_one=layout == GPTQ,
        indexed=layout == GPTQMODEL,
        symmetric=symmetric,
    )
    return Gptq(plain, stored)


def _rules(
    settings: Settings, config: Mapping[str, Any], layout: str, plain: Plain
) -> list[tuple[re.Pattern[str], LinearMethod]]:
    """The methods of `extra_config`; names come before expressions. Raises BadModel."""
    found = settings.get("extra_config", {})
    if not isinstance(found, Mapping):
        raise settings.error(f"extra_config must be an object, found {found!r}")
    names, expressions = [], []
    for name, changes in found.items():
        if not isinstance(changes, Mapping):
            raise settings.error(f"extra_config.{name} must be an object, found {changes!r}")
        method = _of_module(name, changes, config, layout, plain)
        if re.fullmatch(r"[\w.-]+", name):
            names.append((re.compile(re.escape(name) + "$"), method))
        elif changes:
            try:
                expressions.append((re.compile(f".*(?:{name})"), method))
            except re.error as error:
                text = f"extra_config.{name} is no regular expression: {error}"
                raise settings.error(text) from error
    return [*names, *expressions]


def _of_module(
    name: str, changes: Mapping[str, Any], config: Mapping[str, Any], layout: str, plain: Plain
) -> LinearMethod:
    """The method of a module; fields that its entry does not set are quantization_config's."""
    where = f"quantization_config.extra_config.{name}"
    own = Settings(changes, where)
    own.skip("act_bits", "bits", "data_type", "group_size", "sym", *AUTO_ROUND)
    own.done()
    bits = changes.get("bits")
    if isinstance(bits, int) and bits >= 16:
        return plain
    return _method(Settings({**config, **changes}, where), layout, plain)
