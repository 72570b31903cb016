"""Data sets and models from the Hugging Face hub, where there is internet."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from acefl.core.errors import InvalidInput


def load_from_hub(what: str, name: str, *, task: str) -> Any:
    """The splits of a data set (without internet: a copy from before), or one line saying how to get it as a folder."""
    import datasets

    told = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = told or not answers(name, "dataset")
    try:
        return datasets.load_dataset(name)
    except Exception as error:  # no internet, no such name, no disk: whatever it is, a folder is the way out
        raise InvalidInput(
            f"{what} is not to be had from the hub ({type(error).__name__}); give its folder, as in "
            f"{task}(folder='FOLDER') or acefl reproduce --data FOLDER (get one, where there is internet, by: "
            f"{download_command(name, 'FOLDER')})"
        ) from None
    finally:
        datasets.config.HF_HUB_OFFLINE = told


def download_command(name: str, folder: str | Path) -> str:
    """What a person types to have a data set of the hub in a folder; `hf` comes with huggingface-hub."""
    return f"hf download {name} --repo-type dataset --local-dir {shlex.quote(str(folder))}"


def answers(name: str, kind: str = "model") -> bool:
    """Whether there is a hub to ask for a model or a dataset: one question, where its libraries go on asking."""
    from huggingface_hub import file_exists
    from huggingface_hub.errors import HfHubHTTPError

    try:
        file_exists(name, "config.json" if kind == "model" else "README.md", repo_type=kind)
    except HfHubHTTPError:
        return True  # with a refusal, which the libraries explain
    except Exception:  # no internet, or no name that a hub could have
        return False
    return True
