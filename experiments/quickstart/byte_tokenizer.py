"""Byte tokenizer: token id = byte value, id 256 ends a text and pads.

The vocabulary is the 256 symbols of the ByteLevel alphabet, numbered by the byte that each one
stands for, with no merges, so that any text becomes its UTF-8 bytes and comes back unchanged.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 256
VOCABULARY_SIZE = 257


def byte_symbols() -> list[str]:
    """Return the printable symbol of the ByteLevel alphabet for each byte, in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    rest = [byte for byte in range(256) if byte not in symbols]
    symbols.update({byte: chr(0x100 + i) for i, byte in enumerate(rest)})
    return [symbols[byte] for byte in range(256)]


def write_tokenizer(folder: Path, context: int) -> None:
    """Write the tokenizer files that ``AutoTokenizer.from_pretrained(folder)`` reads."""
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
