"""Errors for rules that no schema of the backends expresses."""

from __future__ import annotations


class UnsupportedKeyword(Exception):
    """An unsupported keyword, and in which case it is."""

    def __init__(self, keyword: str, what: str) -> None:
        super().__init__(f"the schema keyword `{keyword}` is not supported {what}")
        self.keyword = keyword
        self.what = what


class LocatedUnsupportedKeyword(UnsupportedKeyword):
    """An unsupported keyword with its place."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
