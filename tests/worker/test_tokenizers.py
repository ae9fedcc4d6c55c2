"""Tokenizers that are converted to tokenizer.json give the tokens of the original."""

from __future__ import annotations

import base64
import io
import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest
from penstock.faults import BadModel
from penstock.tokenizer import byte_level, byte_pairs, convert, pieces, with_tokenizer
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import (
    ByteLevelBPETokenizer,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import AutoTokenizer, LlamaTokenizer

TEXTS = [
    "Hello world, it's 2024! It costs 12345 dollars.",
    "  two  spaces\n\n\tand a tab ",
    "Zürich — naïve café 😀 漢字",
    "def f(x):\n    return x ** 2\r\n",
    "",
    " ",
]
CORPUS = [text * 3 for text in TEXTS] + ["the quick brown fox jumps over the lazy dog " * 4]
LETTERS = {letter: byte for byte, letter in enumerate(byte_level.LETTERS)}


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
    original = trained(byte_level.WORDS % "{1,3}", 420)
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


@pytest.mark.parametrize(
    ("name", "specials"),
    [
        ("qwen.tiktoken", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
        ("hy.tiktoken", [f"<|{n}|>" for n in ("endoftext", "startoftext", "bos", "eos", "pad")]),
    ],
)
def test_qwen_1_and_hunyuan(tmp_path: Path, name: str, specials: list[str]) -> None:
    original = trained(byte_level.WORDS % "", 420)
    original.normalizer = normalizers.NFC()
    write_ranks(tmp_path / name, original)
    ours = converted(tmp_path)
    for text in [*TEXTS, "Zu\u0308rich"]:
        assert ours.encode(text).ids == original.encode(text).ids
    names = [*specials, *(f"<|extra_{n}|>" for n in range(205))]
    first = original.get_vocab_size()
    assert ours.encode("".join(names)).ids == list(range(first, first + len(names)))
    assert ours.get_vocab_size() == first + len(names)


def test_kimi(tmp_path: Path) -> None:
    original = trained(byte_pairs.KIMI_WORDS, 420)
    write_ranks(tmp_path / "tiktoken.model", original)
    first = original.get_vocab_size()
    named = {"[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|tool_call_begin|>": 11}
    entries = {
        str(first + n): {"content": text, "special": text != "<|tool_call_begin|>"}
        for text, n in named.items()
    }
    config = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": entries,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = converted(tmp_path)
    for text in TEXTS:
        assert ours.encode(text).ids == original.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == text
    specials = [*named, f"<|reserved_token_{first + 12}|>", f"<|reserved_token_{first + 255}|>"]
    ids = [first + n for n in (*named.values(), 12, 255)]
    assert ours.encode("".join(specials)).ids == ids
    assert ours.decode(ids) == "<|tool_call_begin|>"
    assert ours.get_vocab_size() == first + 256
    # What Moonshot's own code makes of the text.
    pieces = ["Hello", "World", " ", "漢字", "テスト", " ", "123", "45", " it's", "  ", "\tHTML"]
    assert ours.pre_tokenizer is not None
    spans = ours.pre_tokenizer.pre_tokenize_str("".join(pieces))
    assert [letters_to_text(word) for word, _ in spans] == pieces


def letters_to_text(letters: str) -> str:
    return bytes(LETTERS[letter] for letter in letters).decode()


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


@pytest.mark.parametrize("kind", [pieces.UNIGRAM, pieces.BPE])
@pytest.mark.parametrize(
    ("config", "ids"),
    [
        ({}, [1, 3, 4, 2, 3, 4, 3, 4]),
        ({"legacy": True}, [1, 3, 4, 2, 3, 4, 3, 4]),
        ({"legacy": False}, [1, 3, 4, 2, 4, 3, 4]),
        ({"legacy": False, "add_prefix_space": False}, [1, 4, 2, 4, 3, 4]),
        ({"add_prefix_space": False}, [1, 4, 2, 4, 3, 4]),
    ],
)
def test_sentencepiece_spaces(
    tmp_path: Path, kind: int, config: dict[str, bool], ids: list[int]
) -> None:
    entries = [*CONTROLS, ("▁", -5.0, 1), ("o", -5.0, 1)]
    (tmp_path / "tokenizer.model").write_bytes(spm(entries, kind, dummy=True))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = converted(tmp_path)
    assert ours.encode("o</s>o o").ids == ids
    assert ours.decode(ours.encode("o o").ids) == "o o"


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_spaces_are_those_of_transformers(tmp_path: Path, prefix: bool) -> None:
    entries = [*CONTROLS, *((letter, -5.0, 1) for letter in ("▁", "o", "h", "▁o", "▁h", "oh"))]
    (tmp_path / "tokenizer.model").write_bytes(spm(entries, pieces.BPE, dummy=True))
    config = {"legacy": False, "add_prefix_space": prefix}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = converted(tmp_path)
    state = json.loads(ours.to_str())["model"]
    merges = [tuple(pair) for pair in state["merges"]]
    theirs = LlamaTokenizer(state["vocab"], merges, **config)
    for text in ("o oh", " h", "oh</s>o h</s> o", "</s>o", ""):
        assert ours.encode(text, add_special_tokens=False).ids == theirs.encode(
            text, add_special_tokens=False
        )


def test_sentencepiece_unigram(tmp_path: Path) -> None:
    entries = [*CONTROLS, ("▁", -2.0, 1), ("▁he", -3.0, 1), ("llo", -3.0, 1), ("h", -5.0, 1)]
    entries += [("e", -5.0, 1), ("l", -5.0, 1), ("o", -5.0, 1), ("<mark>", 0.0, 4)]
    (tmp_path / "tokenizer.model").write_bytes(spm(entries, pieces.UNIGRAM, dummy=True))
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    ours = converted(tmp_path)
    assert ours.encode("hello oh").tokens == ["▁he", "llo", "▁", "o", "h"]
    assert ours.encode("o<mark>").ids[-1] == len(entries) - 1
    assert ours.decode(ours.encode("hello oh").ids) == "hello oh"


@pytest.mark.parametrize("kind", [pieces.UNIGRAM, pieces.BPE])
def test_sentencepiece_with_added_tokens(tmp_path: Path, kind: int) -> None:
    entries = [*CONTROLS, *((letter, -5.0, 1) for letter in ("▁", "o", "h"))]
    count = len(entries)
    (tmp_path / "tokenizer.model").write_bytes(spm(entries, kind, dummy=False))
    (tmp_path / "added_tokens.json").write_text(
        json.dumps({"<|end|>": count + 1, "<think>": count, "[PAD]": count + 2})
    )
    (tmp_path / "special_tokens_map.json").write_text(
        '{"eos_token": "<|end|>", "pad_token": {"content": "[PAD]", "lstrip": false}}'
    )
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": null, "add_eos_token": true, "additional_special_tokens": ["<none>"]}'
    )
    ours = converted(tmp_path)
    assert ours.get_vocab_size() == count + 3
    assert ours.encode("h<think>o<|end|>").ids == [5, count, 4, count + 1, count + 1]
    assert ours.decode([5, count, 4, count + 1]) == "h<think>o"  # <think> is not special
    assert ours.encode("<none>", add_special_tokens=False).tokens != ["<none>"]  # it has no id
    names = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (names["eos_token"], names["pad_token"]) == ("<|end|>", "[PAD]")


def test_listed_tokens_flag_pieces(tmp_path: Path) -> None:
    entries = [*CONTROLS, ("▁", -5.0, 1), ("o", -5.0, 1), ("<tool>", -9.0, 1)]
    (tmp_path / "tokenizer.model").write_bytes(spm(entries, pieces.BPE, dummy=False))
    listed = {"2": {"content": "</s>", "rstrip": True, "special": True}}
    listed |= {"5": {"content": "<tool>", "special": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    ours = converted(tmp_path)
    assert ours.encode("</s> o<tool>o").ids == [1, 2, 4, 5, 4]  # </s> takes the space after it


@pytest.mark.parametrize("kind", [pieces.UNIGRAM, pieces.BPE])
def test_added_tokens_take_the_places_of_pieces(tmp_path: Path, kind: int) -> None:
    entries = [*CONTROLS, ("[UNUSED_1]", -9.0, 1), ("o", -5.0, 1)]
    (tmp_path / "tokenizer.model").write_bytes(spm(entries, kind, dummy=False))
    listed = {"3": {"content": "<|im_start|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": listed}))
    ours = converted(tmp_path)
    assert ours.encode("<|im_start|>o").ids == [1, 3, 4]
    assert ours.decode([3, 4]) == "o"
    assert 3 not in ours.encode("[UNUSED_1]").ids


@pytest.mark.parametrize(
    ("number", "word"),
    [
        ("7", "'<tool>' has the id 7; expected 6"),
        ("-1", "'<tool>' must have an id, found -1"),
        ("true", "must have an id, found True"),
    ],
)
def test_added_tokens_continue_the_ids_of_pieces(tmp_path: Path, number: str, word: str) -> None:
    entries = [*CONTROLS, ("▁", -5.0, 1), ("o", -5.0, 1), ("h", -9.0, 1)]
    (tmp_path / "tokenizer.model").write_bytes(spm(entries, pieces.BPE, dummy=False))
    (tmp_path / "added_tokens.json").write_text(f'{{"<tool>": {number}}}')
    with pytest.raises(BadModel, match=word):
        convert(tmp_path, tmp_path)


SPACES = [" ", "  ", "\n", "\t", "\u3000", "\u200b"]
MIXED = [*SPACES, "a", "é", "e\u0301", "ﬁ", "漢", "😀", "the ", "1234"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize(
    ("normalized", "removes", "bytes_too"),
    [("identity", True, True), ("nmt_nfkc", False, True), ("nfkc", True, False)],
)
def test_sentencepiece_gives_the_tokens_of_the_library(
    tmp_path: Path, kind: str, prefix: bool, normalized: str, removes: bool, bytes_too: bool
) -> None:
    """Models that the library trains, and texts with every kind of space."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter([*CORPUS, *Path(__file__).read_text().splitlines()]),
        model_writer=model,
        model_type=kind,
        vocab_size=700 if bytes_too else 440,
        character_coverage=0.99,
        normalization_rule_name=normalized,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=removes,
        byte_fallback=bytes_too,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    ours, theirs = converted(tmp_path), SentencePieceProcessor(model_proto=model.getvalue())
    draw = Random(3)
    mixed = ["".join(draw.choices(MIXED, k=draw.randint(0, 12))) for _ in range(150)]
    # The tokenizers library makes one space of a line end of two characters.
    plain = [text.replace("\r", "") for text in TEXTS]
    for text in [*plain, *mixed]:
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False).ids == ids, text
        if theirs.unk_id() not in ids:
            assert ours.decode(ids) == theirs.decode(ids), text


OPT = {**dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>"), "pad_token": "<pad>"}
MASK = {
    "__type": "AddedToken",
    "content": "<mask>",
    "lstrip": True,
    "rstrip": False,
    "single_word": False,
}
ADDED = {"<|im_start|>": 331, "<think>": 332}
FOLDERS: dict[str, dict[str, dict[str, Any]]] = {
    "gpt2": {"config.json": {"model_type": "gpt2"}},
    "prefix": {
        "tokenizer_config.json": {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}
    },
    "opt": {
        "config.json": {"model_type": "opt"},
        "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, **OPT},
    },
    "codegen": {
        "tokenizer_config.json": {"tokenizer_class": "CodeGenTokenizer"},
        "added_tokens.json": {"   ": 331, "  ": 332},
    },
    "roberta": {
        "tokenizer_config.json": {"tokenizer_class": "RobertaTokenizer", "mask_token": MASK}
    },
    "qwen2": {
        "tokenizer_config.json": {
            "tokenizer_class": "Qwen2Tokenizer",
            "additional_special_tokens": ["<|im_start|>"],
            "added_tokens_decoder": {
                str(number): {"content": text, "special": text == "<|im_start|>"}
                for text, number in ADDED.items()
            },
        },
    },
}


@pytest.mark.parametrize("name", FOLDERS)
def test_vocab_and_merges(tmp_path: Path, name: str) -> None:
    trainer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
    trainer.train_from_iterator(CORPUS, 331, special_tokens=specials, show_progress=False)
    assert trainer.get_vocab_size() == 331
    trainer.save_model(str(tmp_path))
    for file, content in FOLDERS[name].items():
        (tmp_path / file).write_text(json.dumps(content))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), converted(tmp_path)
    marks = "a</s> b<|endoftext|><s> <mask> c<pad>   <|im_start|>user<think></think>"
    for text in [*TEXTS, "Zu\u0308rich", "don't it'S 1234567", "👩\u200d🚀 \u00a0x", marks]:
        ids = ours.encode(text).ids
        assert ids == theirs(text).input_ids, text
        for skipped in (True, False):
            expected = theirs.decode(
                ids, skip_special_tokens=skipped, clean_up_tokenization_spaces=False
            )
            assert ours.decode(ids, skip_special_tokens=skipped) == expected
    assert ours.encode("").ids == {"opt": [2], "roberta": [0, 2]}.get(name, [])


def test_opt_without_a_configuration_of_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"<s>": 0, "</s>": 1, "a": 2}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "config.json").write_text('{"model_type": "opt"}')
    ours = converted(tmp_path)
    assert ours.encode("a</s>").ids == [1, 2, 1]
    names = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert names == dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")


def test_a_folder_with_links_is_made_once(tmp_path: Path) -> None:
    model, cache = tmp_path / "model", tmp_path / "cache"
    model.mkdir()
    (model / "config.json").write_text("{}")
    write_ranks(model / "tokenizer.model", trained(byte_level.WORDS % "{1,3}", 300))
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


RANKS = b"".join(base64.b64encode(bytes([n])) + b" %d\n" % n for n in range(256))
TIKTOKEN = '{"tokenizer_class": "TikTokenTokenizer"%s}'


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("tokenizer.model", b"\x0a\xff\xff\xff\x7f", "not a SentencePiece model; found b'"),
        ("tokenizer.model", b"\x08\x01", "not a SentencePiece model"),
        ("tokenizer.model", field(1, b"\x18\x01"), "not a SentencePiece model"),
        ("tokenizer.model", field(2, b"\x18\x02"), "no pieces"),
        ("tokenizer.model", spm(CONTROLS, 3, dummy=True), "model_type 3"),
        ("tokenizer.model", b"aGk= 0\nbad\n", "line 2 must be a token in base64 .* found b'bad'"),
        ("tokenizer.model", b"garbage", "must be SentencePiece's binary model, or Llama 3's"),
        ("tokenizer.model", b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("qwen.tiktoken", b"IQ== 5\n", "ranks .* found 1 tokens, whose highest rank is 5"),
        ("cl100k_base.tiktoken", RANKS, "class None is not supported"),
        ("tiktoken.model", RANKS, "class None is not supported"),
        ("tekken.json", b"{}", "not a tekken tokenizer"),
        ("vocab.json", b"[]", "must be a JSON object, found"),
        ("vocab.json", b'{"a": "x"}', "'a' must have an id, found 'x'"),
        ("vocab.json", b'{"a": 1, "b": 1}', "id of its own"),
        ("vocab.json", b'{"a": 1}', "line 2 must be two tokens of vocab.json .* found b'a b'"),
    ],
)
def test_a_tokenizer_that_cannot_be_converted(
    tmp_path: Path, name: str, content: bytes, word: str
) -> None:
    (tmp_path / name).write_bytes(content)
    if name == "vocab.json":
        (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    refused(tmp_path, word)


@pytest.mark.parametrize(
    ("name", "config", "word"),
    [
        ("qwen.tiktoken", '{"tokenizer_class": "HYTokenizer"}', "class 'HYTokenizer' is not"),
        (
            "hy.tiktoken",
            '{"auto_map": {"AutoTokenizer": ["x--tokenization.XTokenizer", null]}}',
            "class 'XTokenizer' is not supported",
        ),
        ("tiktoken.model", TIKTOKEN % "", "added_tokens_decoder must name the special tokens"),
        (
            "tiktoken.model",
            TIKTOKEN % ', "added_tokens_decoder": {"7": {"content": "[BOS]"}}',
            r"ids follow the 256 tokens of tiktoken.model; found the ids \[7\]",
        ),
        (
            "tiktoken.model",
            TIKTOKEN % ', "added_tokens_decoder": {"256": "[BOS]"}',
            "must give an id an object with content, found '256': '.BOS.'",
        ),
        (
            "tiktoken.model",
            TIKTOKEN % ', "auto_map": {"AutoTokenizer": ["tokenization_kimia.T", null]}',
            "code is 'tokenization_kimia'; supported: tokenization_kimi, ",
        ),
        ("vocab.json", '{"tokenizer_class": "CLIPTokenizer"}', "class 'CLIPTokenizer' is not"),
        ("vocab.json", "{}", "model_type None implies none"),
        (
            "vocab.json",
            '{"tokenizer_class": "GPT2Tokenizer", "add_bos_token": true}',
            "'<.endoftext.>', which texts get, has no id",
        ),
        (
            "vocab.json",
            '{"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"0": {"content": "x"}}}',
            "'x' has the id 0, which 'a' has",
        ),
        ("vocab.json", "{", "tokenizer_config.json is damaged"),
    ],
)
def test_a_class_that_does_not_fit(tmp_path: Path, name: str, config: str, word: str) -> None:
    (tmp_path / name).write_bytes(b'{"a": 0, "b": 1, "ab": 2}' if name == "vocab.json" else RANKS)
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "tokenizer_config.json").write_text(config)
    refused(tmp_path, word)


def refused(folder: Path, word: str) -> None:
    with pytest.raises(BadModel, match=word):
        convert(folder, folder)
    assert not (folder / "tokenizer.json").exists()
