"""Finds or makes a folder with tokenizer.json: `python -m penstock.tokenizer MODEL`.

Called by the launcher for a model folder without one. Prints one JSON object: `folder`, and
`source` (null if the model has no tokenizer that can be converted), or `error`, a message for the
user.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from huggingface_hub import constants

from penstock.faults import Fault
from penstock.tokenizer.convert import with_tokenizer


def main(model: Path) -> dict[str, str | None]:
    """Returns what is printed."""
    cache = Path(constants.HF_HUB_CACHE).parent / "penstock" / "tokenizers"
    try:
        found = with_tokenizer(model, cache)
    except (Fault, OSError) as error:
        return {"error": f"the tokenizer cannot be converted: {error}"}
    if found is None:
        return {"folder": str(model), "source": None}
    folder, source = found
    return {"folder": str(folder), "source": source.name}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))) + "\n")
