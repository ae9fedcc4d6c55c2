"""A server whose model begins every answer with thoughts."""

from __future__ import annotations

import shutil
from pathlib import Path

from serving import Server

BROOK = Path(__file__).resolve().parents[1] / "python/penstock/brook"
OPENED = (
    "{%- if add_generation_prompt and enable_thinking is not false %}{{ '<think>\\n' }}{% endif %}"
)


# A prompt in harmony ends before the header of the answer's first message.
HARMONY = (
    "{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
    "{% if false %}<|channel|>analysis<|message|>{% endif %}"
)


def harmony_server(folder: Path) -> Server:
    """Brook, whose prompts end as those of gpt-oss. Brook's end token has the name of harmony's end
    of a message, so it gets another one; harmony's marks are text."""
    model = Path(shutil.copytree(BROOK, folder / "model"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        file = model / name
        file.write_text(file.read_text().replace("<|end|>", "<|over|>"))
    with (model / "chat_template.jinja").open("a") as template:
        template.write(HARMONY)
    options = ["--model", str(model), "--served-model-name", "brook"]
    return Server(folder / "log", [*options, "--tool-call-parser", "harmony"])


def server(folder: Path, *options: str) -> Server:
    """Brook, whose every prompt ends inside thoughts: it does not know how to end them itself."""
    template = folder / "template.jinja"
    template.write_text((BROOK / "chat_template.jinja").read_text() + OPENED)
    return Server(folder / "log", ["--chat-template", str(template), *options])
