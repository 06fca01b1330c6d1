"""What a runtime answers whose stacks are tried as they are and cannot be taken apart."""

from __future__ import annotations

from collections.abc import Sequence

from stackbisect.probe import Candidate, ProbeResult, Unsupported
from stackbisect.spaces.components import Component, Inventory


class Whole:
    """Nothing can be swapped: `no_components` and `no_versions` say why, to people."""

    no_components: str
    no_versions: str

    def difference(self, good: Candidate, bad: Candidate) -> dict[str, dict[str, list[str | None]]]:
        """Nothing is known of what is in two candidates."""
        return {}

    def inventory(
        self, good: Candidate, bad: Candidate, probes: Sequence[ProbeResult]
    ) -> Inventory:
        """Raise Unsupported."""
        raise Unsupported(self.no_components)

    def versions(self, component: Component, good: Candidate, bad: Candidate) -> list[str]:
        """Raise Unsupported."""
        raise Unsupported(f"{component.id}: {self.no_versions}")

    def prefetch(self, candidate: Candidate) -> None:
        """Nothing is done ahead."""

    def close(self) -> None:
        """Nothing is held between probes."""
