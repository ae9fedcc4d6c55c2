"""Penstock: a server for large language models, and its engine in this process.

>>> from penstock import LLM, SamplingParams
>>> with LLM() as llm:
...     llm.generate(["Once upon a time"], SamplingParams(max_tokens=40))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.asyncllm import AsyncLLM
    from penstock.llm import LLM
    from penstock.request import (
        Completion,
        Logprob,
        SamplingParams,
        StructuredOutputsParams,
        ToolCall,
    )

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Logprob",
    "SamplingParams",
    "StructuredOutputsParams",
    "ToolCall",
]


def __getattr__(name: str) -> object:
    """Imports lazily: a worker imports this package and needs none of these."""
    if name == "AsyncLLM":
        from penstock.asyncllm import AsyncLLM

        return AsyncLLM
    if name == "LLM":
        from penstock.llm import LLM

        return LLM
    if name in __all__:
        from penstock import request

        return getattr(request, name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
