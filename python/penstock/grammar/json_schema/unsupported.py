"""What is raised where no schema of the backends says what a rule does."""

from __future__ import annotations


class UnsupportedKeyword(Exception):
    """Says which keyword is not kept, and what of it."""

    def __init__(self, keyword: str, what: str) -> None:
        super().__init__(f"the schema keyword `{keyword}` is not supported {what}")
        self.keyword = keyword
        self.what = what


class LocatedUnsupportedKeyword(UnsupportedKeyword):
    """Says where, too."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
