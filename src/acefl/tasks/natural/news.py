"""20 Newsgroups by author: what a message is about, where everybody has only their own."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import torch
from torch.nn import functional as F

from acefl.core.errors import require
from acefl.tasks.groups import by_group
from acefl.tasks.natural.tables import HELD_OUT, task
from acefl.tasks.news20 import Words, checksums
from acefl.tasks.text_files import load, stripped
from acefl.tasks.torch_task import TorchTask

_AT_LEAST = 4  # messages of an author
_LENGTH, _VOCABULARY = 64, 2048
_DIGITS = 10  # of the hash that an author is called by
_FROM = re.compile(r"^From:(.*)$", re.MULTILINE | re.IGNORECASE)
_ADDRESS = re.compile(r"[^\s<>(),;:\"]+@[^\s<>(),;:\"]+")


def news(
    folder: str = "data/news20",
    clients: int | None = None,
    *,
    batch: int = 10,
    seed: int = 0,
    sha256: str | None = None,
) -> TorchTask:
    """20 Newsgroups by author, from a folder: a linear classifier of a message's words, of 20 classes.

    A client is an author with at least four messages, called by a hash of the address in the header's `From`, so that
    records and reports name nobody. Predicted is the group that a message was posted to, from its first words, known by
    their checksums. Header, signature and quoted lines are stripped: they say who wrote it and to whom.

    Args:
        folder: Where 20 Newsgroups lies, with its headers: see `acefl.tasks.text_files` for the layouts.
        clients: How many authors, those with most messages first; None: all that have four.
        batch: Samples per minibatch.
        seed: Has no effect: the model starts at 0, and what authors hold out is fixed.
        sha256: Of the messages and their groups, as records have it; others are refused.
    """
    texts = load(folder, strip=False)
    messages, groups = [*texts.train, *texts.test], np.concatenate([texts.train_labels, texts.test_labels])
    found = _hash(messages, groups)
    require(sha256 in (None, found), f"the messages in {folder} have sha256 {found}; allowed: {sha256}")
    authors = np.array([author(message) for message in messages])
    names, counts = np.unique(authors, return_counts=True)
    known = (names != "") & (counts >= _AT_LEAST)
    names, counts = names[known], counts[known]
    allowed = "20 Newsgroups with its headers, and authors of four messages"
    require(len(names) > 0, f"no message in {folder} says From: whom; allowed: {allowed}")
    chosen = len(names) if clients is None else clients
    require(1 <= chosen <= len(names), f"clients is {clients}; allowed: from 1 to {len(names)}, or None for all")
    kept = np.isin(authors, names[np.argsort(-counts, kind="stable")[:chosen]])
    own_words = [stripped(message) for message, is_kept in zip(messages, kept, strict=True) if is_kept]
    inputs, targets = checksums(own_words, _LENGTH, _VOCABULARY), torch.from_numpy(groups[kept])
    own = by_group((inputs, targets), authors[kept], test=HELD_OUT, order="target")
    record = {"name": "natural.news", "folder": folder, "clients": clients, "batch": batch, "seed": seed}
    return task(Words(0, _VOCABULARY), F.cross_entropy, own, record | {"sha256": found})


def author(message: str) -> str:
    """What its author is called: ten hex digits of the SHA-256 of the address in the header's From, in lower case.

    Where that line has no address, of what is written there; without one, ''.
    """
    line = _FROM.search(message.partition("\n\n")[0])
    written = line.group(1).strip().lower() if line else ""
    address = _ADDRESS.search(written)
    known = address.group(0) if address else written.strip("() ")
    return hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS] if known else ""


def _hash(messages: list[str], groups: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> str:
    content = hashlib.sha256(groups.astype("<i8").tobytes())
    for message in messages:
        content.update(message.encode("utf-8", "surrogatepass") + b"\0")
    return content.hexdigest()
