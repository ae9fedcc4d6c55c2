"""A server whose model begins every answer with thoughts."""

from __future__ import annotations

from pathlib import Path

from serving import Server

BROOK = Path(__file__).resolve().parents[1] / "python/penstock/brook"
OPENED = (
    "{%- if add_generation_prompt and enable_thinking is not false %}{{ '<think>\\n' }}{% endif %}"
)


def server(folder: Path, *options: str) -> Server:
    """Brook, whose every prompt ends inside thoughts: it does not know how to end them itself."""
    template = folder / "template.jinja"
    template.write_text((BROOK / "chat_template.jinja").read_text() + OPENED)
    return Server(folder / "log", ["--chat-template", str(template), *options])
