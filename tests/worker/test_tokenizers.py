"""Tokenizers that are converted to tokenizer.json give the tokens of the original."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest
from penstock.faults import BadModel
from penstock.tokenizer import byte_pairs, convert, pieces, with_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = [
    "Hello world, it's 2024! It costs 12345 dollars.",
    "  two  spaces\n\n\tand a tab ",
    "Zürich — naïve café 😀 漢字",
    "def f(x):\n    return x ** 2\r\n",
    "",
    " ",
]
CORPUS = [text * 3 for text in TEXTS] + ["the quick brown fox jumps over the lazy dog " * 4]
LETTERS = {letter: byte for byte, letter in enumerate(byte_pairs._letters())}


def trained(pattern: str, size: int) -> Tokenizer:
    """A byte-level tokenizer whose ids are the ranks of its merges, without special tokens."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def ranks(tokenizer: Tokenizer) -> list[bytes]:
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return [bytes(LETTERS[letter] for letter in text) for text, _ in vocab]


def write_ranks(path: Path, tokenizer: Tokenizer) -> None:
    lines = (f"{base64.b64encode(t).decode()} {n}" for n, t in enumerate(ranks(tokenizer)))
    path.write_text("\n".join(lines) + "\n")


def converted(folder: Path) -> Tokenizer:
    out = folder / "out"
    out.mkdir()
    assert convert(folder, out) is not None
    return Tokenizer.from_file(str(out / "tokenizer.json"))


def test_llama_3(tmp_path: Path) -> None:
    original = trained(byte_pairs.WORDS % "{1,3}", 420)
    write_ranks(tmp_path / "tokenizer.model", original)
    ours = converted(tmp_path)
    size = original.get_vocab_size()
    for text in TEXTS:
        expected = original.encode(text).ids
        assert ours.encode(text).ids == [size, *expected]
        assert ours.decode(expected) == text
    turn = "<|start_header_id|>user<|end_header_id|>\n\n<|eot_id|>"
    ids = ours.encode(turn, add_special_tokens=False).ids
    assert (ids[0], ids[-1]) == (size + 6, size + 9)
    assert ours.get_vocab_size() == size + 256
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config == {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def test_qwen_1(tmp_path: Path) -> None:
    original = trained(byte_pairs.WORDS % "", 420)
    original.normalizer = normalizers.NFC()
    write_ranks(tmp_path / "qwen.tiktoken", original)
    ours = converted(tmp_path)
    for text in [*TEXTS, "Zu\u0308rich"]:
        assert ours.encode(text).ids == original.encode(text).ids
    assert ours.token_to_id("<|im_end|>") == original.get_vocab_size() + 2


@pytest.mark.parametrize("listed", [True, False])
def test_tekken(tmp_path: Path, listed: bool) -> None:
    pattern, special = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+", 30
    original = trained(pattern, 400)
    tokens = ranks(original)
    entries = [
        {"rank": n, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for n, token in enumerate(tokens)
    ]
    size = len(tokens) - 10  # the file has more than the model
    content = {
        "config": {
            "pattern": pattern,
            "default_vocab_size": size + special,
            "default_num_special_tokens": special,
        },
        "vocab": entries,
    }
    if listed:
        names = ["<unk>", "<s>", "</s>", "[INST]", "[THINK]"]
        content["special_tokens"] = [{"rank": n, "token_str": t} for n, t in enumerate(names)]
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    ours = converted(tmp_path)
    assert ours.get_vocab_size() == size + special
    for text in TEXTS:
        expected = original.encode(text).ids
        if max(expected, default=0) < size:
            assert ours.encode(text).ids == [1, *(special + token for token in expected)]
    assert ours.token_to_id("[INST]") == 3
    assert ours.token_to_id("[THINK]" if listed else "[TOOL_CALLS]") == (4 if listed else 9)
    assert ours.token_to_id("<SPECIAL_29>") == 29


def field(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer with a length."""
    size, lengths = len(content), bytearray()
    while size > 127:
        lengths.append(size & 127 | 128)
        size >>= 7
    lengths.append(size)
    key = number << 3 | 2
    return bytes((*([key] if key < 128 else [key & 127 | 128, key >> 7]), *lengths)) + content


def spm(entries: list[tuple[str, float, int]], kind: int, dummy: bool) -> bytes:
    """A SentencePiece model of (text, score, type)."""
    content = b""
    for text, score, type_ in entries:
        piece = field(1, text.encode()) + b"\x15" + struct.pack("<f", score)
        content += field(1, piece + bytes((0x18, type_)))
    byte_fallback = any(type_ == pieces.BYTE for _, _, type_ in entries)
    content += field(2, bytes((0x18, kind, 0x98, 0x02, byte_fallback)))
    return content + field(3, bytes((0x18, dummy, 0x20, 0)))


CONTROLS = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]


@pytest.mark.parametrize("dummy", [True, False])
def test_sentencepiece_bpe(tmp_path: Path, dummy: bool) -> None:
    scheme = "always" if dummy else "never"
    original = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    original.normalizer = normalizers.Replace(" ", "▁")
    if dummy:
        original.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=texts, limit_alphabet=60, show_progress=False
    )
    pre = pre_tokenizers.Metaspace("▁", scheme)
    training = Tokenizer(models.BPE(unk_token="<unk>"))
    training.pre_tokenizer = pre
    training.train_from_iterator(CORPUS, trainer)
    state = json.loads(training.to_str())["model"]
    names = sorted(state["vocab"], key=state["vocab"].get)
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in state["merges"]]
    original.model = models.BPE(
        state["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    entries = CONTROLS + [(text, 0.0, 6) for text in names[3:259]]
    entries += [(text, -float(n), 1) for n, text in enumerate(names[259:])]
    (tmp_path / "tokenizer.model").write_bytes(spm(entries, pieces.BPE, dummy))
    ours = converted(tmp_path)
    for text in TEXTS:
        expected = original.encode(text).ids
        assert ours.encode(text).ids == [1, *expected]
        assert ours.decode(expected) == text
    assert ours.encode("a</s>b").ids[2] == 2


def test_sentencepiece_unigram(tmp_path: Path) -> None:
    entries = [*CONTROLS, ("▁", -2.0, 1), ("▁he", -3.0, 1), ("llo", -3.0, 1), ("h", -5.0, 1)]
    entries += [("e", -5.0, 1), ("l", -5.0, 1), ("o", -5.0, 1), ("<mark>", 0.0, 4)]
    (tmp_path / "tokenizer.model").write_bytes(spm(entries, pieces.UNIGRAM, dummy=True))
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    ours = converted(tmp_path)
    assert ours.encode("hello oh").tokens == ["▁he", "llo", "▁", "o", "h"]
    assert ours.encode("o<mark>").ids[-1] == len(entries) - 1
    assert ours.decode(ours.encode("hello oh").ids) == "hello oh"


def test_a_folder_with_links_is_made_once(tmp_path: Path) -> None:
    model, cache = tmp_path / "model", tmp_path / "cache"
    model.mkdir()
    (model / "config.json").write_text("{}")
    write_ranks(model / "tokenizer.model", trained(byte_pairs.WORDS % "{1,3}", 300))
    made = with_tokenizer(model, cache)
    assert made is not None
    folder, source = made
    assert source == model / "tokenizer.model"
    assert (folder / "config.json").resolve() == model / "config.json"
    assert not (model / "tokenizer.json").exists()
    before = (folder / "tokenizer.json").stat().st_mtime_ns
    assert with_tokenizer(model, cache) == made
    assert (folder / "tokenizer.json").stat().st_mtime_ns == before
    assert [path.name for path in cache.iterdir()] == [folder.name]
    (model / "config.json").write_text("{ }")
    changed = with_tokenizer(model, cache)
    assert changed is not None
    assert changed[0] != folder
    (tmp_path / "none").mkdir()
    assert with_tokenizer(tmp_path / "none", cache) is None


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("tokenizer.model", b"\x0a\xff\xff\xff\x7f", "not a SentencePiece model"),
        ("tokenizer.model", field(2, b"\x18\x02"), "no pieces"),
        ("tokenizer.model", spm(CONTROLS, 3, dummy=True), "model_type 3"),
        ("tokenizer.model", b"aGk= 0\nbad\n", "not a tiktoken vocabulary"),
        ("qwen.tiktoken", b"IQ== 5\n", "ranks"),
        ("tekken.json", b"{}", "not a tekken tokenizer"),
    ],
)
def test_a_tokenizer_that_cannot_be_converted(
    tmp_path: Path, name: str, content: bytes, word: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadModel, match=word):
        convert(tmp_path, tmp_path)
    assert not (tmp_path / "tokenizer.json").exists()
