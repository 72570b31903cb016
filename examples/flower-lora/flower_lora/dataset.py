"""The texts of a node. Put your own here: nothing in this file knows of Flower or acefl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Rows = list[dict[str, list[int]]]
WORDS = (("the cow", "the hen"), ("the ship", "a wave"), ("my train", "a bus"), ("the sun", "a star"))


def load_data(name: str, partition: int, tokenizer: Any, length: int) -> tuple[Rows, Rows]:
    """Rows of `length` tokens to train on, and from the last fifth of the texts, rows to evaluate on."""
    texts = read(name, partition) if name else made_up(partition)
    cut = max(1, len(texts) * 4 // 5)
    return pack(texts[:cut], tokenizer, length), pack(texts[cut:], tokenizer, length)


def read(folder: str, partition: int) -> list[str]:
    """The texts of one partition: the files of a folder, or the paragraphs of a file."""
    places = sorted(place for place in Path(folder).iterdir() if place.is_dir() or place.suffix == ".txt")
    place = places[partition]
    if place.is_dir():
        return [file.read_text("utf-8") for file in sorted(place.iterdir())]
    return place.read_text("utf-8").split("\n\n")


def made_up(partition: int) -> list[str]:
    """Sentences of which other nodes have others."""
    one, other = WORDS[partition % len(WORDS)]
    return [f"{one} goes to {other} and {other} goes {number} times to {one}." for number in range(40)]


def pack(texts: list[str], tokenizer: Any, length: int) -> Rows:
    """One stream of tokens, cut into rows of one length; what is left over is left out."""
    stream: list[int] = []
    for text in texts:
        stream += [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    rows = [stream[start : start + length] for start in range(0, len(stream) - length + 1, length)]
    if not rows:
        raise ValueError(f"{len(texts)} texts have {len(stream)} tokens; a row needs {length} (train.seq-length)")
    return [{"input_ids": row, "labels": row} for row in rows]
