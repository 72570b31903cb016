"""Data sets and models from the Hugging Face hub, where there is internet."""

from __future__ import annotations

from typing import Any

from acefl.errors import InvalidInput


def load_from_hub(what: str, name: str) -> Any:
    """The splits of a data set (without internet: a copy from before), or one line saying how to get it as a folder."""
    import datasets

    told = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = told or not answers(name, "dataset")
    try:
        return datasets.load_dataset(name)
    except Exception as error:  # no internet, no such name, no disk: whatever it is, a folder is the way out
        raise InvalidInput(
            f"{what} is not to be had from the hub ({type(error).__name__}); give its folder (--data): on a machine "
            f"with internet, huggingface-cli download {name} --repo-type dataset --local-dir FOLDER"
        ) from None
    finally:
        datasets.config.HF_HUB_OFFLINE = told


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
