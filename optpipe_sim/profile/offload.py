"""Offload: copy engines, host links and pinned host memory."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ProfileError


@dataclass(frozen=True)
class Offload:
    """Copy engines and host links; which devices share a PCIe switch; the pinned host memory.

    `copy_engines`: ``separate`` (per device one for O, one for R) or ``shared``. `host_link`: per
    group one transfer at a time ``per_direction``, or a ``single`` one altogether (default: as the
    engines). A device in no group has a link of its own.
    """

    copy_engines: str = "separate"
    host_link: str | None = None
    host_link_groups: tuple[tuple[int, ...], ...] = ()
    host_limit_bytes: int | None = None
    devices_per_node: int | None = None

    def __post_init__(self) -> None:
        if self.copy_engines not in ("separate", "shared"):
            raise ProfileError(
                f"offload.copy_engines: expected separate or shared, got {self.copy_engines!r}"
            )
        if self.host_link is None:
            default = "per_direction" if self.copy_engines == "separate" else "single"
            object.__setattr__(self, "host_link", default)
        if self.host_link not in ("per_direction", "single"):
            raise ProfileError(
                f"offload.host_link: expected per_direction or single, got {self.host_link!r}"
            )

    def links(self, devices: int) -> tuple[tuple[int, ...], ...]:
        """The devices on each host link: the groups in their order, then the lone devices."""
        grouped = {device for group in self.host_link_groups for device in group}
        lone = tuple((device,) for device in range(devices) if device not in grouped)
        return self.host_link_groups + lone
