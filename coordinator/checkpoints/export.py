"""Export of a checkpoint to a folder for plain transformers, without files for resuming training.

  config.json, model.safetensors, tokenizer files   for from_pretrained
  probe.safetensors                                 fixed batch; its loss is in the manifest
  README.md, loss.svg                               model card with its loss curve
  manifest.json                                     step, era, probe loss, SHA-256 and size of every other file

The export is written to a temporary folder, which is renamed after sync, verification and tests.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from auth.errors import StorageError
from auth.files import new_directory, sync
from coordinator.checkpoints.manifest import MANIFEST, StoredCheckpoint, file_entry, verify

LEFT_OUT = frozenset({"optimizer.safetensors", "run.yaml"})  # only for resuming; may contain private URLs


@contextmanager
def exporting(
    stored: StoredCheckpoint, target: Path, texts: Mapping[str, str], *, link: bool = False
) -> Iterator[Path]:
    """Yield a temporary folder with the export, which is renamed to `target` if the block succeeds.

    `texts` maps names of additional files to their contents. With `link`, files are hard links
    where possible and must not be modified. Every file is verified against `stored.manifest`.
    Raises `StorageError` for a damaged or missing checkpoint, `ConfigError` if `target` has files.
    """
    names = [name for name in stored.manifest.files if name not in LEFT_OUT and name not in texts]
    with new_directory(target) as folder:
        for name in names:
            _take(stored.path / name, folder / name, link)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        files = {path.name: file_entry(path) for path in sorted(folder.iterdir())}
        for name in names:
            if files[name] != stored.manifest.files[name]:
                raise StorageError(f"{stored.path.name}: {name} does not match the manifest.")
        manifest = stored.manifest.model_copy(update={"files": files})
        (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        for path in (*folder.iterdir(), folder):
            sync(path)
        verify(folder)
        yield folder


def _take(source: Path, target: Path, link: bool) -> None:
    if link:
        with suppress(OSError):  # another file system, or no hard links
            os.link(source, target)
            return
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise StorageError(f"{source.parent.name}: {source.name} cannot be copied ({error.strerror}).") from error
