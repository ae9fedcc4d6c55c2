"""What an unreadable file holds, for error messages."""

from __future__ import annotations

SHOWN = 40  # bytes
LFS = b"version https://git-lfs"


def shown(content: bytes) -> str:
    """Returns the beginning of a file or line, with a remedy for a pointer of Git LFS."""
    if content.startswith(LFS):
        return "a pointer of Git LFS in place of the file: `git lfs pull` fetches it"
    more = " ..." if len(content) > SHOWN else ""
    return f"{content[:SHOWN]!r}{more}" if content else "nothing"
