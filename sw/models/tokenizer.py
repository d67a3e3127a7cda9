"""Text to token ids and back, with the `tokenizer.json` that lies beside a checkpoint.

Source: byte-level BPE (Radford et al. 2019, section 2.2): each of the 256 bytes has a printable stand-in character, so
every string encodes; a token may end inside a UTF-8 character, which streaming has to hold back.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as BaseTokenizer

from sw.errors import CheckpointError, ModelError
from sw.models.gpt2_config import checkpoint_directory, read_json_object

FILE = "tokenizer.json"


class Tokenizer:
    """A byte-level BPE tokenizer.

    Parameters: `directory` that holds `tokenizer.json`.
    Raises CheckpointError: kinds ``missing_tokenizer``, ``bad_json``, ``bad_tokenizer``.
    """

    def __init__(self, directory: str | Path) -> None:
        path = checkpoint_directory(directory) / FILE
        if not path.is_file():
            raise CheckpointError(
                "missing_tokenizer",
                f"No {FILE} in {path.parent}.",
                value=str(path),
                expected=FILE,
                hint="Copy tokenizer.json beside config.json (vocab.json and merges.txt alone are not read).",
            )
        decoder = read_json_object(path).get("decoder")
        if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
            raise _bad(path, f"has decoder {decoder!r}")
        try:
            self._base = BaseTokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise _bad(path, f"is not read by the tokenizers library ({error})") from error
        added = self._base.get_added_tokens_decoder()
        self._special = frozenset(id for id, token in added.items() if token.special)

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return int(self._base.get_vocab_size(with_added_tokens=True))

    def token_id(self, token: str) -> int | None:
        """Id of a token as `tokenizer.json` writes it, for example '<|endoftext|>'; None if it has no such token."""
        found = self._base.token_to_id(token)
        return None if found is None else int(found)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; a special token's text gives its id. ModelError ``bad_text`` for lone surrogates."""
        try:
            return list(self._base.encode(text).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise ModelError(
                "bad_text",
                "The text is not valid Unicode (a lone surrogate).",
                value=text[:40],
                expected="text that encodes to UTF-8",
                hint="Decode the input with errors='replace'.",
            ) from error

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one id stands for; special tokens stand for none. ModelError ``bad_ids`` if unknown."""
        if token in self._special:
            return b""
        try:
            return self._bytes[token]
        except KeyError:
            raise ModelError(
                "bad_ids",
                f"Token id {token} is outside the tokenizer's vocabulary of {self.vocab_size}.",
                value=token,
                expected=f"0 to {self.vocab_size - 1}",
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids` without special tokens; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def stream(self) -> StreamDecoder:
        """A decoder that takes one id at a time."""
        return StreamDecoder(self)

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        stand_in = {character: byte for byte, character in enumerate(byte_characters())}
        table = {}
        for token, id in self._base.get_vocab(with_added_tokens=True).items():
            if all(character in stand_in for character in token):
                table[id] = bytes(stand_in[character] for character in token)
            else:
                table[id] = token.encode("utf-8")  # an added token is written as it reads
        return table


class StreamDecoder:
    """Turns ids into text one by one; a character comes out when its last byte is there.

    The pieces of `push`, then `finish`, join to exactly `Tokenizer.decode` of the same ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that became complete with `token`; often empty inside a multi-byte character."""
        return self._utf8.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never became complete, else an empty string."""
        return self._utf8.decode(b"", final=True)


def byte_characters() -> Sequence[str]:
    """The stand-in character of each byte 0 to 255: itself if printable, else the next free one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    characters, spare = [], 0x100
    for byte in range(256):
        characters.append(chr(byte if byte in printable else spare))
        spare += byte not in printable
    return characters


def _bad(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        "bad_tokenizer",
        f"{path} {what}.",
        value=str(path),
        expected="a byte-level BPE tokenizer (GPT-2)",
        hint="Use the tokenizer.json that was saved with the checkpoint.",
    )
