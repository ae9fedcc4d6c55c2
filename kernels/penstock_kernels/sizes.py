"""Arithmetic of launch sizes. Triton's own functions for it take microseconds on the host."""


def divided_up(amount: int, size: int) -> int:
    """Pieces of `size` that hold `amount`."""
    return -(-amount // size)


def power_of_two(least: int) -> int:
    """The smallest power of two that is not less; 1 for 0."""
    return 1 << max(least - 1, 0).bit_length()
