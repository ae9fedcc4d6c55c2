"""Models without a native implementation: transformers' own module over paged attention."""

from penstock.models.fallback.model import Fallback

__all__ = ["Fallback"]
