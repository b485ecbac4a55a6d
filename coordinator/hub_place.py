"""A repository on the Hugging Face Hub as a place to publish to: one commit for each checkpoint, so never a half one.

Models go to repositories of models, the demo of a release to a Space.

`upload_folder` is not used: with hf_xet it commits a folder in several batches. `create_commit` uploads the large
files first, those that are there already not again, and then commits all at once.
"""

from __future__ import annotations

from pathlib import Path

from auth.errors import PublicationError
from coordinator.manifests import StoredCheckpoint
from coordinator.place_settings import HUB, PlaceSettings, Secret


class HubPlace:
    """One repository."""

    def __init__(self, settings: PlaceSettings, secret: Secret, *, space: bool = False) -> None:
        self._repository = settings.to.removeprefix(HUB).strip("/")
        self._private = settings.private
        self._secret = secret
        self._kind = "space" if space else "model"

    def publish(self, folder: Path, checkpoint: StoredCheckpoint) -> str:
        """Commit the exported folder of this checkpoint and return the commit's address.

        The same folder again makes no second commit. Raises `PublicationError`.
        """
        from huggingface_hub import CommitOperationAdd, HfApi  # only where it is needed: it takes a while
        from huggingface_hub.utils.tqdm import disable_progress_bars

        disable_progress_bars()
        api = HfApi(token=self._secret.token or False)
        try:
            sdk = "docker" if self._kind == "space" else None
            api.create_repo(self._repository, repo_type=self._kind, space_sdk=sdk, private=self._private, exist_ok=True)
            head = api.repo_info(self._repository, repo_type=self._kind).sha
            commit = api.create_commit(
                self._repository,
                [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())],
                commit_message=f"Step {checkpoint.manifest.step} of {checkpoint.manifest.run}",
                repo_type=self._kind,
                parent_commit=head,  # somebody else's commit meanwhile: try again on top of it
            )
        except Exception as error:  # noqa: BLE001 - whatever the client's layers raise
            raise PublicationError(
                f"{HUB}{self._repository} does not take the checkpoint ({self._secret.reason(error)}): "
                "check the token, its rights and the network."
            ) from None  # the cause may hold the request with its headers
        return str(commit.commit_url)
