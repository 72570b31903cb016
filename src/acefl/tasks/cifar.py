"""CIFAR-10 and CIFAR-100, from a folder, split over clients by label."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from acefl.core import rng as keyed
from acefl.core.errors import InvalidInput, one_of, require
from acefl.tasks.image_files import load
from acefl.tasks.local_work import LocalSteps, LocalWork, local_text
from acefl.tasks.partition import Rows
from acefl.tasks.partition import partition as split
from acefl.tasks.torch_task import EVALUATION_BATCH, TorchTask
from acefl.tasks.vision import resnet18, small_cnn

MODELS: dict[str, Callable[..., nn.Module]] = {"resnet18": resnet18, "cnn": small_cnn}
ON_CPU = 64  # images in a call when evaluating: more than the caches hold is slower
EVALUATE_ON = 20  # of each client's own images: all of them would cost more than the training between evaluations
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def cifar10(
    folder: str | None = None,
    clients: int = 100,
    alpha: float = 0.1,
    model: str = "resnet18",
    seed: int = 0,
    *,
    norm: str = "group",
    batch: int = 50,
    partition: str = "dirichlet",
    classes_per_client: int = 2,
    samples: int | None = None,
    test_samples: int | None = None,
    validation: bool = False,
    device: str = "cpu",
    bf16: bool = False,
    rows: list[Rows] | None = None,
    augment: bool = False,
    local: str | LocalWork | LocalSteps | None = None,
    start: str | None = None,
    channels_last: bool | None = None,
    compute: str = "auto",
    compile: str | bool = "auto",
) -> TorchTask:
    """CIFAR-10 from `folder` (see `acefl.tasks.image_files` for the layouts it may have; None: from the hub).

    `samples` and `test_samples` keep only so many images. `validation` evaluates on a tenth of the training images,
    which no client then has, instead of the test set: for choosing settings. `rows` gives the split over clients
    instead of drawing it. `augment` crops and mirrors training images at random, as is usual. `local` is what a client
    does instead of one gradient, as in "sgd(epochs=2, lr=0.01, momentum=0.9, send='mean')": see
    `acefl.tasks.LocalWork`. `start` is a safetensors file with parameters to start from.

    Args:
        folder: See above.
        clients: How many clients the data are split over.
        alpha: Dirichlet parameter of the split by label; smaller is more uneven.
        model: `resnet18` or `cnn`.
        seed: Of the split and the first model.
        norm: `group`, `batch` (statistics of the batch) or `carried`.
        batch: Samples per minibatch.
        partition: `dirichlet`, `shards`, `pathological` or `iid`: see `partition`.
        classes_per_client: Labels per client, for `shards` and `pathological`.
        samples, test_samples, validation: See above.
        device: Where to compute.
        bf16: Compute gradients in bfloat16.
        rows, augment, local, start: See above.
        channels_last: The memory format of images and weights: faster on a CPU too, with other rounding; None: where
            `bf16` is on.
        compute, compile: How gradients are computed: see `TorchTask`.
    """
    return _cifar("cifar10", 10, **locals())


def cifar100(
    folder: str | None = None,
    clients: int = 100,
    alpha: float = 0.1,
    model: str = "resnet18",
    seed: int = 0,
    *,
    norm: str = "group",
    batch: int = 50,
    partition: str = "dirichlet",
    classes_per_client: int = 2,
    samples: int | None = None,
    test_samples: int | None = None,
    validation: bool = False,
    device: str = "cpu",
    bf16: bool = False,
    rows: list[Rows] | None = None,
    augment: bool = False,
    local: str | LocalWork | LocalSteps | None = None,
    start: str | None = None,
    channels_last: bool | None = None,
    compute: str = "auto",
    compile: str | bool = "auto",
) -> TorchTask:
    """CIFAR-100 (fine labels) from `folder`; settings as for `cifar10`.

    Args:
        folder, clients, alpha, model, seed, norm, batch, partition, classes_per_client: As for `cifar10`.
        samples, test_samples, validation, device, bf16, rows, augment, local, start, channels_last, compute, compile:
            As for `cifar10`.
    """
    return _cifar("cifar100", 100, **locals())


def _cifar(
    name: str,
    classes: int,
    *,
    folder: str | None,
    clients: int,
    alpha: float,
    model: str,
    seed: int,
    norm: str,
    batch: int,
    partition: str,
    classes_per_client: int,
    samples: int | None,
    test_samples: int | None,
    validation: bool,
    device: str,
    bf16: bool,
    rows: list[Rows] | None,
    augment: bool,
    local: str | LocalWork | LocalSteps | None,
    start: str | None,
    channels_last: bool | None,
    compute: str,
    compile: str | bool,
) -> TorchTask:
    one_of("model", model, tuple(MODELS))
    data = load(name, folder)
    order = np.random.default_rng(seed).permutation(len(data.train))
    held_out, used = np.split(order, [len(order) // 10 if validation else 0])
    if samples is not None:
        require(1 <= samples <= len(used), f"samples is {samples}; allowed: from 1 to {len(used)}")
        used = used[:samples]
    x, y = torch.from_numpy(data.train), torch.from_numpy(data.train_labels)
    if rows is None:
        options: dict[str, Any] = {"alpha": alpha, "classes_per_client": classes_per_client, "seed": seed}
        rows = [used[own] for own in split(data.train_labels[used], clients, how=partition, **options)]
    test = (x[held_out], y[held_out]) if validation else (torch.tensor(data.test), torch.tensor(data.test_labels))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = MODELS[model](classes=classes, norm=norm)
    if start is not None:
        start_from(module, start)
    return TorchTask(
        module,
        nn.CrossEntropyLoss(),
        [(x[own], y[own]) for own in rows],
        test=(test[0][:test_samples], test[1][:test_samples]),
        batch=batch,
        local=local,
        device=device,
        prepare=normaliser(device),
        augment=shifted_and_mirrored if augment else None,
        evaluate_on=EVALUATE_ON,
        evaluation_batch=ON_CPU if device == "cpu" and norm != "batch" else EVALUATION_BATCH,
        bf16=bf16,
        channels_last=bf16 if channels_last is None else channels_last,
        compute=compute,
        compile=compile,
        description={
            "name": name,
            "folder": None if folder is None else str(folder),
            "clients": clients,
            "alpha": alpha,
            "model": model,
            "seed": seed,
            "norm": norm,
            "batch": batch,
            "partition": partition,
            "classes_per_client": classes_per_client,
            "samples": samples,
            "test_samples": test_samples,
            "validation": validation,
            "device": device,
            "bf16": bf16,
            "augment": augment,
            "local": local_text(local),
            "start": start,
            **({} if channels_last is None else {"channels_last": channels_last}),
            **{name: own for name, own in (("compute", compute), ("compile", compile)) if own != "auto"},
        },
    )


def start_from(module: nn.Module, path: str) -> None:
    """Take parameters from a file by name; a last layer of another size, for other classes, stays as it is."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InvalidInput(f"start: cannot read {path}: {error}") from None
    own = module.state_dict()
    missing = [name for name in own if name not in found]
    require(not missing, f"start: {path} has no {', '.join(missing[:3])}; allowed: a file of this model's parameters")
    other = [name for name in own if found[name].shape != own[name].shape]
    head = [name for name in list(own)[-2:] if name in other]
    require(
        other == head, f"start: {path} has other shapes at {', '.join(other[:3])}; allowed: at the last layer alone"
    )
    module.load_state_dict({name: found[name] for name in own if name not in other}, strict=False)


def normaliser(device: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Pixels to zero mean and unit variance per channel. The constants are on the device already: a CUDA graph that is
    being captured may not fetch them."""
    mean = torch.tensor(_MEAN, device=device).view(3, 1, 1)
    std = torch.tensor(_STD, device=device).view(3, 1, 1)
    return lambda pixels: (pixels.float() / 255.0 - mean) / std


_SHIFT = 4  # pixels at most, in each direction
_AUGMENTATION = 0x5DEECE66D  # apart from the draw of the minibatch, which has the same keys


def shifted_and_mirrored(images: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Each image of (clients, samples, 3, height, width) moved by up to four pixels, every other mirrored."""
    clients, samples, _, height, width = images.shape
    bits = keyed.bits(keys ^ _AUGMENTATION, samples)
    down, right, mirrored = bits % (2 * _SHIFT + 1), (bits >> 8) % (2 * _SHIFT + 1), ((bits >> 16) % 2).bool()
    place = torch.arange(max(height, width), device=images.device)
    columns = torch.where(mirrored.unsqueeze(2), width - 1 - place[:width], place[:width]) + right.unsqueeze(2)
    rows = place[:height] + down.unsqueeze(2)
    who = torch.arange(clients, device=images.device).view(-1, 1, 1, 1)
    which = torch.arange(samples, device=images.device).view(1, -1, 1, 1)
    padded = F.pad(images, (_SHIFT,) * 4)
    moved = padded[who, which, :, rows.unsqueeze(3), columns.unsqueeze(2)]  # the colours come last
    return moved.permute(0, 1, 4, 2, 3)
