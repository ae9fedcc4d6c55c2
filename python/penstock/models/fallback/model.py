"""A model that transformers' own module computes, with Penstock's paged attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from penstock.faults import BadModel
from penstock.layers import Build
from penstock.layers.attention import StepContext
from penstock.models.fallback.description import Description, describe
from penstock.models.fallback.heads import Heads
from penstock.models.fallback.interface import LAYER, PAGED, PagedLayer, Step, register
from penstock.models.fallback.isolation import check_isolation
from penstock.models.fallback.linears import OwnLinears, reads_weights
from penstock.models.fallback.probe import prepared
from penstock.models.fallback.sharing import share_experts

SHOWN = 5


class Fallback:
    """Runs any causal language model of transformers whose attention goes through its interface.

    The batch is flat, [1, T], with a position for each token and no padding between sequences; keys
    and values go to Penstock's blocks, and the library's cache is off.
    """

    def __init__(self, description: Description, build: Build) -> None:
        self.description = description
        self.build = build
        self.step, sharing = Step(), description.sharing
        self.blocks = [
            PagedLayer(
                index=index,
                scale=layer.attention.scale,
                window=layer.attention.window,
                softcap=layer.attention.softcap,
                width=layer.attention.head_dim,
                heads=Heads(
                    layer.attention.heads,
                    layer.attention.kv_heads,
                    build.group,
                    whole=build.group.size > 1 and layer.module in sharing.whole,
                ),
                cos_sin=build.rope_table(None, layer.attention.head_dim),
                step=self.step,
            )
            for index, layer in enumerate(description.layers)
        ]
        self.linears: OwnLinears | None = None
        shares = sharing.linears if build.group.size > 1 else {}
        if shares or build.methods.formats:
            self.linears = OwnLinears(build, shares, while_loading=not description.quantized)
        self.module: Any = None
        self.body: Any = None
        self._run_body: Callable[..., Any] = lambda: None
        self._output_type: Any = None
        self._hidden: Tensor | None = None

    @classmethod
    def read_config(cls, raw: Mapping[str, Any]) -> Description:
        """Reads config.json and probes the model. Raises BadModel."""
        return describe(raw)

    def load(self, directory: Path, progress: Callable[[int, int], None]) -> int:
        """Loads the weights by the library's own rules of names, fusions and ties; returns their
        bytes. Raises BadModel, naming tensors that are missing, left over or mis-shaped, and if
        tokens see each other outside attention."""
        total = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
        progress(0, total)
        self.module = self._read(directory)
        self.body = self.module.get_submodule(self.description.body)
        for layer, paged in zip(self.description.layers, self.blocks, strict=True):
            setattr(self.module.get_submodule(layer.module), LAYER, paged)
        self._run_body, self.body.forward = self.body.forward, self._body
        if self.linears is not None:
            self.linears.load(
                directory, self.module, lambda done, _: progress(min(done, total), total)
            )
        self._check_isolation()
        progress(total, total)
        return self.kept_bytes()

    def _check_isolation(self) -> None:
        """Runs the first passes. Raises BadModel."""
        try:
            check_isolation(self._isolated, self.description.vocab, self.build.device)
        except AttributeError as error:
            if self.linears is None:
                raise
            raise reads_weights(error) from error
        except RuntimeError as error:
            if self.build.group.size == 1 or isinstance(error, torch.OutOfMemoryError):
                raise
            raise BadModel(f"transformers' module runs on one rank alone: {error}") from error

    def _read(self, directory: Path) -> Any:
        from transformers.utils.logging import disable_progress_bar

        register()
        disable_progress_bar()
        description, linears, device = self.description, self.linears, self.build.device
        experts = description.sharing.experts if self.build.group.size > 1 else {}
        cls = description.model_class
        if linears is not None:
            cls = linears.replacing(cls)
        try:
            with torch.inference_mode(False):
                module, report = cls.from_pretrained(
                    directory,
                    config=description.config,
                    dtype=self.build.dtype,
                    # A device has no room for whole experts.
                    device_map={"": "cpu" if experts else device},
                    attn_implementation=PAGED,
                    local_files_only=True,
                    use_safetensors=True,
                    ignore_mismatched_sizes=True,  # the report names them
                    trust_remote_code=False,
                    output_loading_info=True,
                )
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise BadModel(f"transformers cannot load the checkpoint: {error}") from error
        for what, key in (("lacks", "missing_keys"), ("has unknown", "unexpected_keys")):
            _refuse(f"the checkpoint {what} tensors", report.get(key))
        _refuse("config.json gives other shapes to tensors", report.get("mismatched_keys"))
        share_experts(module, experts, self.build.group)
        return prepared(module.to(device))

    def kept_bytes(self) -> int:
        """Returns the bytes of parameters and buffers, shared ones once."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        whole: int = sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
        return whole if self.linears is None else whole + self.linears.kept_bytes()

    def forward(
        self,
        ids: Tensor,
        context: StepContext,
        rows: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """ids [T] -> hidden states after the last norm, [T, hidden], or [R, hidden] of `rows`."""
        with self.step.of(context):
            hidden = self._states(ids, context.positions.long(), embeddings)
        return hidden if rows is None else hidden.index_select(0, rows)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> [R, vocab], by the library's head, with its scales and caps."""
        self._hidden = hidden[None]
        try:
            ids = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
            logits: Tensor = self.module(input_ids=ids, use_cache=False).logits
            return logits[0]
        finally:
            self._hidden = None

    def _states(self, ids: Tensor, positions: Tensor | None, embeddings: Tensor | None) -> Tensor:
        inputs: dict[str, Tensor] = {}
        if embeddings is None:
            inputs["input_ids"] = ids[None]
        else:
            inputs["inputs_embeds"] = embeddings[None]
        if positions is not None:
            inputs["position_ids"] = positions[None]
        output = self.body(**inputs, use_cache=False)
        self._output_type = type(output)
        hidden: Tensor = output.last_hidden_state
        return hidden[0]

    def _isolated(self, ids: Tensor, positions: Tensor | None) -> Tensor:
        """Hidden states [T, hidden] of tokens that do not see each other."""
        with self.step.of(None):
            return self._states(ids, positions, None)

    def _body(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the body's forward: within `logits`, its hidden states are given."""
        if self._hidden is None:
            return self._run_body(*args, **kwargs)
        return self._output_type(last_hidden_state=self._hidden)


def _refuse(what: str, tensors: Any) -> None:
    """Raises BadModel if there are such tensors."""
    if tensors:
        names = sorted(
            str(tensor[0] if isinstance(tensor, tuple) else tensor) for tensor in tensors
        )
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise BadModel(f"{what}: {', '.join(names[:SHOWN])}{more}")
