"""CIFAR-100 by coarse label: pictures that are hard to tell apart, where everybody has only one kind of them."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import nn

from acefl.core.errors import require
from acefl.tasks.cifar import EVALUATE_ON, ON_CPU, normaliser
from acefl.tasks.groups import NamedClients
from acefl.tasks.image_files import Images, load
from acefl.tasks.natural.tables import seeded
from acefl.tasks.torch_task import TorchTask
from acefl.tasks.vision import small_cnn

COARSE = {  # fine labels by coarse one
    "aquatic mammals": (4, 30, 55, 72, 95),
    "fish": (1, 32, 67, 73, 91),
    "flowers": (54, 62, 70, 82, 92),
    "food containers": (9, 10, 16, 28, 61),
    "fruit and vegetables": (0, 51, 53, 57, 83),
    "household electrical devices": (22, 39, 40, 86, 87),
    "household furniture": (5, 20, 25, 84, 94),
    "insects": (6, 7, 14, 18, 24),
    "large carnivores": (3, 42, 43, 88, 97),
    "large man-made outdoor things": (12, 17, 37, 68, 76),
    "large natural outdoor scenes": (23, 33, 49, 60, 71),
    "large omnivores and herbivores": (15, 19, 21, 31, 38),
    "medium-sized mammals": (34, 63, 64, 66, 75),
    "non-insect invertebrates": (26, 45, 77, 79, 99),
    "people": (2, 11, 35, 46, 98),
    "reptiles": (27, 29, 44, 78, 93),
    "small mammals": (36, 50, 65, 74, 80),
    "trees": (47, 52, 56, 59, 96),
    "vehicles 1": (8, 13, 48, 58, 90),
    "vehicles 2": (41, 69, 81, 85, 89),
}


def cifar100(
    folder: str | None = None, clients: int = 20, *, batch: int = 20, seed: int = 0, sha256: str | None = None
) -> TorchTask:
    """CIFAR-100 by coarse label, from a folder: a small convolutional network of 100 classes.

    A client has the pictures of one of the 20 coarse labels, such as `fish` or `trees`, and is called by it. With more
    clients each label's pictures go to so many in turn (`fish 1`, `fish 2`). Predicted is the fine label, of all 100.
    What a client trains on and what it holds out are its parts of the training and the test set, as the data's authors
    split them.

    Args:
        folder: Where CIFAR-100 lies: see `acefl.tasks.image_files` for the layouts; None: from the hub.
        clients: How many: 20, or a multiple of it.
        batch: Samples per minibatch.
        seed: Of the first model; who has which pictures is fixed.
        sha256: Of the pictures and their labels, as records have it; others are refused.
    """
    allowed = f"{len(COARSE)}, or a multiple of it"
    require(clients >= 1 and clients % len(COARSE) == 0, f"clients is {clients}; allowed: {allowed}")
    images = load("cifar100", folder)
    found = _hash(images)
    require(sha256 in (None, found), f"the pictures in {folder} have sha256 {found}; allowed: {sha256}")
    own = _by_coarse_label(images, clients // len(COARSE))
    with seeded(seed):
        model = small_cnn(classes=100, width=16, hidden=128)
    return TorchTask(
        model,
        nn.CrossEntropyLoss(),
        own,
        batch=batch,
        compute="one-by-one",  # convolutions gain nothing from many models in one call on a CPU
        prepare=normaliser("cpu"),
        evaluate_on=EVALUATE_ON,
        evaluation_batch=ON_CPU,
        description={
            "name": "natural.cifar100",
            "folder": None if folder is None else str(folder),
            "clients": clients,
            "batch": batch,
            "seed": seed,
            "sha256": found,
        },
    )


def _by_coarse_label(images: Images, each: int) -> NamedClients:
    """Every client's pictures: of one coarse label, dealt out in the order of the files."""
    names: list[str] = []
    parts: tuple[list[tuple[torch.Tensor, torch.Tensor]], ...] = ([], [])
    splits = ((images.train, images.train_labels), (images.test, images.test_labels))
    for coarse, fine in COARSE.items():
        for place in range(each):
            names.append(coarse if each == 1 else f"{coarse} {place + 1}")
            for part, (pixels, labels) in zip(parts, splits, strict=True):
                own = np.isin(labels, fine).nonzero()[0][place::each]
                require(
                    len(own) > 0, f"no picture is left for {names[-1]!r}; allowed: fewer clients, or all of CIFAR-100"
                )
                part.append((torch.from_numpy(pixels[own]), torch.from_numpy(labels[own])))
    return NamedClients(names, *parts)


def _hash(images: Images) -> str:
    content = hashlib.sha256()
    for part in (images.train, images.train_labels, images.test, images.test_labels):
        content.update(part.astype(part.dtype.newbyteorder("<"), order="C", copy=False).data)
    return content.hexdigest()
