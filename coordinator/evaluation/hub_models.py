"""A check that a model exists on the Hugging Face Hub, made before `manyhands evaluate` loads it.

Without this check, transformers would retry an unreachable Hub for a minute and log each attempt.
"""

from __future__ import annotations

from auth.errors import ConfigError, UnreachableError
from peer.network.http import reaching

TIMEOUT_S = 10.0


def require_model(name: str) -> None:
    """Raise `ConfigError` if the Hub lacks the model, or `UnreachableError` if it does not respond.

    Models in the local Hub cache are accepted. If `HF_HUB_OFFLINE` is set, every name is accepted,
    because transformers then reads the model from the cache.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache  # imported here, because the import is slow
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        with reaching(constants.ENDPOINT):
            try:
                is_cached = isinstance(try_to_load_from_cache(name, "config.json"), str)
                if not is_cached and not constants.HF_HUB_OFFLINE:
                    HfApi(constants.ENDPOINT).model_info(name, timeout=TIMEOUT_S)
            except (HFValidationError, RepositoryNotFoundError) as error:
                raise ConfigError(
                    f"There is no folder {name}, and the hub has no model of that name that this machine may read: "
                    "name a run, a checkpoint's folder, or a model of the hub."
                ) from error
            except HfHubHTTPError:  # the Hub responds; loading the model will report the error
                return
    except UnreachableError as error:
        raise UnreachableError(
            f"There is no folder {name}, and the hub cannot be asked for a model of that name: {error} Check the name, "
            "this machine's connection, and `HF_ENDPOINT` if it is set."
        ) from error
