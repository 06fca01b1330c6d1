"""The images of one bisection on its Docker daemon: pulled by need, within a budget, and read."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pinner.durable import replace_text
from stackbisect.probe import Candidate, InfrastructureError
from stackbisect.runtimes import image_budget, pull_progress
from stackbisect.runtimes.archive import ArchiveError
from stackbisect.runtimes.docker_engine import Engine, Image, Untestable
from stackbisect.runtimes.image_budget import Pulled
from stackbisect.spaces import image_contents

PULLED = "pulled.json"
CONTENTS = "contents"


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
                self._remember(reference, image)
            elif reference in self._pulled:
                self._remember(reference, image)
            yield image
        finally:
            with self._lock:
                self._in_use[reference] -= 1
            self._keep_to_budget(engine, reference)

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
                try:
                    found = self._read(engine, image)
                except (ArchiveError, Untestable) as error:
                    raise InfrastructureError(
                        f"{candidate.label} cannot be read: {error}"
                    ) from error
                self._keep(image, found)
            return found

    def _read(self, engine: Engine, image: Image) -> image_contents.Contents:
        settings = {
            "Name": f"stackbisect-{secrets.token_hex(8)}",
            "Cmd": ["stackbisect"],  # never started, but the daemon wants a command
            "Labels": self._labels,
            "HostConfig": {"NetworkMode": "none"},
        }
        container = engine.create(image.id, settings)
        try:
            return image_contents.read(engine.export(container), image.env)
        finally:
            engine.remove(container)

    def _remember(self, reference: str, image: Image) -> None:
        with self._lock:
            self._pulled[reference] = Pulled(image.size, time.time())
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
    return folder / CONTENTS / f"{image.id.removeprefix('sha256:')}.json"
