"""Conversion of tokenizers to tokenizer.json, from the files of SentencePiece, tiktoken, GPT-2 and
Mistral."""

from penstock.tokenizer.convert import SOURCES, convert, with_tokenizer

__all__ = ["SOURCES", "convert", "with_tokenizer"]
