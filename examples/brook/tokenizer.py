"""Train brook's tokenizer: byte-level BPE, each digit a token of its own."""

from collections.abc import Iterator
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from .kinds import SHORT, library
from .sample import BOS, SPECIAL_TOKENS, segments

VOCABULARY = 4096
_SAMPLES = 60_000


def corpus(seed: int) -> Iterator[str]:
    """Texts of every kind of sample, and all docstrings once."""
    rng = Random(seed)
    makers, weights = zip(*SHORT, strict=True)
    for maker in rng.choices(makers, weights, k=_SAMPLES):
        for text, _ in segments(maker(rng, False)):
            yield text
    yield from library.texts()


def train(seed: int = 1) -> Tokenizer:
    """A tokenizer of VOCABULARY tokens that decodes any UTF-8 text to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(seed), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
    return tokenizer
