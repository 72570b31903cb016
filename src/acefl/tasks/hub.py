"""Data sets and models from the Hugging Face hub, where there is internet."""

from __future__ import annotations

import importlib
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


def needed(library: str, what: str, extra: str) -> Any:
    """An optional library, or one line that says how to get it."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise InvalidInput(f"{what} needs {library}: pip install 'acefl[{extra}]'") from None


def folder_or_name(example: str) -> str:
    """Where transformers find a model, for a line that says what is allowed."""
    return (
        "a folder with a transformers model (safetensors) and its tokenizer, or with internet a name on the hub "
        f"such as {example}"
    )


def pretrained(kind: Any, model: str, *, allowed: str, **settings: Any) -> Any:
    """A transformers model or tokenizer; code that lies beside it is never run."""
    logging = importlib.import_module("transformers").utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # it says at length that a new last layer is new, as it must be
    logging.disable_progress_bar()
    try:
        local = Path(model).is_dir() or not answers(model)
        return kind.from_pretrained(model, **settings, local_files_only=local, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"model {model!r} cannot be loaded ({reason[:120]}); allowed: {allowed}") from None
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()
