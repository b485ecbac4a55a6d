"""Models of the hub that are to be evaluated: `manyhands evaluate` asks the hub for each before it computes anything.

transformers, which loads them later, tries for a minute to reach a hub that does not answer, and logs each attempt.
"""

from __future__ import annotations

from auth.errors import ConfigError, UnreachableError
from peer.network.http import reaching

TIMEOUT_S = 10.0


def require_model(name: str) -> None:
    """Raise `ConfigError` if the hub has no model of this name, and `UnreachableError` if the hub does not answer.

    A model in the hub's cache on this machine passes, and so does any model's name while `HF_HUB_OFFLINE` is set:
    transformers looks into the cache itself.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache  # only where it is needed: it takes a while
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
            except HfHubHTTPError:  # the hub answers: loading the model tells what is wrong
                return
    except UnreachableError as error:
        raise UnreachableError(
            f"There is no folder {name}, and the hub cannot be asked for a model of that name: {error} Check the name, "
            "this machine's connection, and `HF_ENDPOINT` if it is set."
        ) from error
