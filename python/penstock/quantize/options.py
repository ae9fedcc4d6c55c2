"""Options of a run, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from penstock.faults import BadSetting

METHODS = {
    "awq": "activation-aware scales (arXiv:2306.00978), int4 with zero points, AWQ's layout",
    "fp8": "float8 e4m3, a scale per output, compressed-tensors' layout",
    "gptq": "error compensation (arXiv:2210.17323), int4 or int8, GPTQ's layout",
    "rtn": "round to nearest, int4 or int8, GPTQ's layout",
}
# Options that not all methods have, and those that have them. The launcher refuses others by name
# before it fetches a model.
APPLIES = {
    "bits": ("gptq", "rtn"),
    "group": ("awq", "gptq", "rtn"),
    "symmetric": ("gptq", "rtn"),
    "act_order": ("gptq",),
    "mse": ("gptq", "rtn"),
    "damp": ("gptq",),
}


@dataclass(frozen=True)
class Options:
    """How to quantize. Raises BadSetting for options that contradict each other."""

    method: str
    bits: int = 4
    group: int = 128
    """Inputs that share a scale; 0 = all of a row."""
    symmetric: bool = True
    """No zero points. AWQ has them always."""
    act_order: bool = False
    """GPTQ: rounds columns in the order of their activations' squares. Groups keep their inputs."""
    mse: bool = False
    """GPTQ and rtn: a group's codes cover the range of weights with the least error."""
    damp: float = 0.01
    """GPTQ: what is added to the Hessian's diagonal, as a share of its mean."""
    samples: int = 128
    """Texts to calibrate with, at most."""
    length: int = 2048
    """Tokens of a text, at most."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            known = ", ".join(METHODS)
            raise BadSetting(f"method {self.method!r} is unknown; choose one of {known}")
        if self.bits not in (4, 8):
            raise BadSetting(f"bits must be 4 or 8, found {self.bits}")
        for one in fields(self):
            methods = APPLIES.get(one.name, (self.method,))
            if self.method not in methods and getattr(self, one.name) != one.default:
                raise BadSetting(
                    f"{one.name} does not apply to method {self.method}; it applies to "
                    f"{', '.join(methods)}"
                )
        if self.group < 0 or self.group % 16:
            raise BadSetting(
                f"group must be 0 (a scale per output) or a multiple of 16, found {self.group}"
            )
        for name, least in (("samples", 2), ("length", 16)):
            if getattr(self, name) < least:
                raise BadSetting(f"{name} must be at least {least}, found {getattr(self, name)}")
        if not 0 < self.damp < 1:
            raise BadSetting(f"damp must be above 0 and below 1, found {self.damp}")

    def stored(self) -> dict[str, object]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class Job:
    """What to quantize, and where to."""

    model: Path
    out: Path
    options: Options
    calibration: Path | None = None
    """Texts, one a line; None = those that Penstock includes."""
    device: str = "cpu"


@dataclass
class Report:
    """How much the model lost."""

    before: float
    """Perplexity of the texts that were not calibrated with."""
    after: float
    errors: dict[str, float] = field(default_factory=dict)
    """Of each matrix: the squared error of its outputs on the calibration's activations, as a share
    of their squares."""

    def text(self) -> str:
        """A line for the user."""
        growth = 100 * (self.after / self.before - 1)
        return f"perplexity {self.before:.4f} before, {self.after:.4f} after ({growth:+.2f} %)"
