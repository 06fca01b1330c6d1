"""The images of one bisection on its Docker daemon: pulled by need, within a budget, and read."""

from __future__ import annotations

import contextlib
import gzip
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pinner.durable import replace_text
from stackbisect.probe import Candidate, InfrastructureError
from stackbisect.runtimes import image_budget, pull_progress
from stackbisect.runtimes.archive import ArchiveError
from stackbisect.runtimes.docker_engine import Engine, Image, Untestable
from stackbisect.runtimes.image_budget import Pulled
from stackbisect.spaces import image_contents, image_files, ownership
from stackbisect.spaces.image_files import ImageFiles
from stackbisect.spaces.inventory import Pair
from stackbisect.spaces.ownership import Owned

PULLED = "pulled.json"
CONTENTS = "contents"
FILES = "files"
LOADED = "loaded"

_T = TypeVar("_T")


class ImageStore:
    """Gives out images and remembers which it pulled. Threads may share it.

    `folder` keeps what is known from run to run; None keeps it in memory. `budget` is in bytes;
    None is no limit. `labels` are those of the bisection. `tell` is told how pulls go.
    """

    def __init__(
        self,
        folder: Path | None,
        budget: int | None,
        labels: Mapping[str, str],
        tell: pull_progress.Tell = pull_progress.silent,
    ) -> None:
        """Read what earlier runs pulled."""
        self._tell = tell
        self._folder = folder
        self._budget = budget
        self._labels = dict(labels)
        self._lock = threading.Lock()
        self._in_use: Counter[str] = Counter()
        self._pulled = {} if folder is None else image_budget.load(folder / PULLED)
        self._contents: dict[str, image_contents.Contents] = {}
        self._owned: dict[str, Owned] = {}
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._loaded: dict[str, tuple[str, ...]] = {}
        self._locks: dict[str, threading.Lock] = {}

    @contextlib.contextmanager
    def use(
        self, engine: Engine, candidate: Candidate, stopped: Callable[[], bool]
    ) -> Iterator[Image]:
        """Give an image, pulled by digest where it is not here; afterwards keep to the budget.

        Raises Untestable, InfrastructureError, Stopped.
        """
        reference = str(candidate.details["reference"])
        with self._lock:
            self._in_use[reference] += 1
        try:
            image = engine.image(reference)
            if image is None:
                image = self._pull(engine, candidate, stopped)
                self._remember(reference, image.size)
            elif reference in self._pulled:
                self._remember(reference, image.size)
            yield image
        finally:
            with self._lock:
                self._in_use[reference] -= 1
            self._keep_to_budget(engine, reference)

    @contextlib.contextmanager
    def use_built(
        self, engine: Engine, reference: str, build: Callable[[], int]
    ) -> Iterator[Image]:
        """Give an image that is built here where it is not yet; then as `use`.

        `build` makes it and returns its size without its base, in bytes.
        """
        with self._lock:
            self._in_use[reference] += 1
            building = self._locks.setdefault(reference, threading.Lock())
        try:
            with building:  # two probes of one stack build it once
                image = engine.image(reference)
                size = build() if image is None else self._size(reference, image)
                image = image or engine.image(reference)
            if image is None:
                raise InfrastructureError(f"{reference} was built and is gone again")
            self._remember(reference, size)
            yield image
        finally:
            with self._lock:
                self._in_use[reference] -= 1
            self._keep_to_budget(engine, reference)

    def _size(self, reference: str, image: Image) -> int:
        with self._lock:
            known = self._pulled.get(reference)
        return image.size if known is None else known.size

    def owned(self, engine: Engine, candidate: Candidate, stopped: Callable[[], bool]) -> Owned:
        """Every file of an image and whom it belongs to; read once for each image id."""
        with self.use(engine, candidate, stopped) as image:
            with self._lock:
                reading = self._locks.setdefault(image.id, threading.Lock())
            with reading:
                found = self._owned.get(image.id)
                if found is None:
                    found = ownership.read(self._files(engine, candidate, image), image.env)
                    self._owned[image.id] = found
            return found

    def pair(
        self, engine: Engine, good: Candidate, bad: Candidate, stopped: Callable[[], bool]
    ) -> Pair:
        """Two images' files and owners; what differs between them is found out once."""
        found = [self.owned(engine, each, stopped) for each in (good, bad)]
        with self._lock:
            return self._pairs.setdefault((good.id, bad.id), Pair(found[0], found[1]))

    def _files(self, engine: Engine, candidate: Candidate, image: Image) -> ImageFiles:
        place = None if self._folder is None else self._folder / FILES / _name(image.id, ".json.gz")
        if place is not None:
            with contextlib.suppress(OSError, EOFError):
                known = image_files.loads(gzip.decompress(place.read_bytes()).decode())
                if known is not None:
                    return known
        found = self._exported(engine, candidate, image, image_files.read)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            draft = place.with_suffix(f".{secrets.token_hex(4)}")
            draft.write_bytes(gzip.compress(image_files.dumps(found).encode(), 1))
            draft.replace(place)
        return found

    def remember_loaded(self, candidate: Candidate, libraries: Sequence[str]) -> None:
        """Keep which libraries a probe of an image loaded: mixtures are held against it."""
        with self._lock:
            self._loaded[candidate.id] = tuple(libraries)
        if self._folder is not None:
            place = self._folder / LOADED / _name(candidate.id, ".json")
            place.parent.mkdir(parents=True, exist_ok=True)
            replace_text(place, json.dumps(list(libraries)) + "\n")

    def loaded(self, candidate: Candidate) -> tuple[str, ...] | None:
        """The libraries that a probe of an image loaded; None where none is known."""
        with self._lock:
            found = self._loaded.get(candidate.id)
        if found is None and self._folder is not None:
            with contextlib.suppress(OSError, ValueError):
                place = self._folder / LOADED / _name(candidate.id, ".json")
                found = tuple(map(str, json.loads(place.read_text())))
        return found

    def forget(self, references: Iterable[str]) -> None:
        """These images are not here any more."""
        with self._lock:
            for reference in references:
                self._pulled.pop(reference, None)
            self._save()

    def _pull(self, engine: Engine, candidate: Candidate, stopped: Callable[[], bool]) -> Image:
        details = candidate.details
        repository, _, digest = str(details["reference"]).partition("@")
        progress = pull_progress.PullProgress(
            candidate.label, int(details.get("size") or 0), self._tell
        )
        platform = details.get("platform")
        image = engine.pull(repository, digest, platform, stopped, saw=progress.saw)
        progress.done()
        return image

    def contents(
        self, engine: Engine, candidate: Candidate, stopped: Callable[[], bool]
    ) -> image_contents.Contents:
        """Read what is in an image; once for each image id. Nothing of the image runs."""
        with self.use(engine, candidate, stopped) as image:
            found = self._known(image)
            if found is None:
                env = image.env
                found = self._exported(
                    engine, candidate, image, lambda export: image_contents.read(export, env)
                )
                self._keep(image, found)
            return found

    def _exported(
        self,
        engine: Engine,
        candidate: Candidate,
        image: Image,
        read: Callable[[Iterator[bytes]], _T],
    ) -> _T:
        try:
            return self._read(engine, image, read)
        except (ArchiveError, Untestable) as error:
            raise InfrastructureError(f"{candidate.label} cannot be read: {error}") from error

    def _read(self, engine: Engine, image: Image, read: Callable[[Iterator[bytes]], _T]) -> _T:
        settings = {
            "Name": f"stackbisect-{secrets.token_hex(8)}",
            "Cmd": ["stackbisect"],  # never started, but the daemon wants a command
            "Labels": self._labels,
            "HostConfig": {"NetworkMode": "none"},
        }
        container = engine.create(image.id, settings)
        try:
            return read(engine.export(container))
        finally:
            engine.remove(container)

    def _remember(self, reference: str, size: int) -> None:
        with self._lock:
            self._pulled[reference] = Pulled(size, time.time())
            self._save()

    def _keep_to_budget(self, engine: Engine, last: str) -> None:
        """Remove what is over the budget; an image that a container still needs stays."""
        if self._budget is None:
            return
        with self._lock:
            in_use = {last, *(name for name, users in self._in_use.items() if users > 0)}
            for reference in image_budget.too_many(self._pulled, self._budget, in_use):
                with contextlib.suppress(InfrastructureError):
                    engine.remove_image(reference)
                    del self._pulled[reference]
            self._save()

    def _save(self) -> None:
        if self._folder is not None:
            image_budget.save(self._folder / PULLED, self._pulled)

    def _known(self, image: Image) -> image_contents.Contents | None:
        if self._folder is None:
            return self._contents.get(image.id)
        try:
            return image_contents.loads(_place(self._folder, image).read_text(encoding="utf-8"))
        except OSError:
            return None

    def _keep(self, image: Image, found: image_contents.Contents) -> None:
        if self._folder is None:
            self._contents[image.id] = found
            return
        place = _place(self._folder, image)
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_text(place, image_contents.dumps(found))


def _place(folder: Path, image: Image) -> Path:
    return folder / CONTENTS / _name(image.id, ".json")


def _name(identity: str, suffix: str) -> str:
    return identity.rpartition(":")[2] + suffix
