"""Offload: copy engines, host links, pinned host memory, and drives below the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..errors import ProfileError
from ..stage_cost import StageCost
from ..units import format_size, round_half_up


@dataclass(frozen=True)
class Nvme:
    """The drives of a node, to which offloads go instead of to the memory of its host.

    Attributes:
        write_bytes_per_s, read_bytes_per_s: of all drives of a node together.
        staging_bytes: of host memory per node, through which copies stream; None: none is needed
            (GPUDirect Storage).
        write_behind: an O ends when its bytes are in that memory, where they wait to be written.
        rated_bytes: that may be written to all drives of a node in their life; None: unknown.
    """

    write_bytes_per_s: int
    read_bytes_per_s: int
    staging_bytes: int | None = None
    rated_bytes: int | None = None
    write_behind: bool = False

    def write_ns(self, size_bytes: int) -> int:
        """Return how long all drives together write a copy."""
        return round_half_up(Fraction(size_bytes * 10**9, self.write_bytes_per_s))


@dataclass(frozen=True)
class Offload:
    """Copy engines and host links; which devices share a PCIe switch; the pinned host memory.

    `copy_engines`: ``separate`` (per device one for O, one for R) or ``shared``. `host_link`: per
    group one transfer at a time ``per_direction``, or a ``single`` one altogether (default: as the
    engines). A device in no group has a link of its own. With `nvme`, copies go to the drives of
    the node, whose rates its links share evenly.
    """

    copy_engines: str = "separate"
    host_link: str | None = None
    host_link_groups: tuple[tuple[int, ...], ...] = ()
    host_limit_bytes: int | None = None
    devices_per_node: int | None = None
    nvme: Nvme | None = None

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
        if self.nvme is not None and self.host_limit_bytes is not None:
            raise ProfileError(
                "offload.host_limit: not with nvme, where nvme.staging_gib says what copies may hold of"
                " the host's memory"
            )
        if self.writes_behind and self.nvme.staging_bytes is None:  # type: ignore[union-attr]
            raise ProfileError(
                "offload.nvme.write_behind: needs staging_gib, the host's memory in which copies wait"
            )

    @property
    def writes_behind(self) -> bool:
        """Whether copies wait in the host's memory until the drives have written them."""
        return self.nvme is not None and self.nvme.write_behind

    @property
    def pinned_limit_bytes(self) -> int | None:
        """Host memory per node that a schedule may exceed, and then does not fit; None: it cannot. Copies
        that stream to drives never hold more than there has to be."""
        return self.nvme.staging_bytes if self.writes_behind else self.host_limit_bytes  # type: ignore[union-attr]

    def links(self, devices: int) -> tuple[tuple[int, ...], ...]:
        """Return the devices on each host link: the groups in their order, then the lone devices."""
        grouped = {device for group in self.host_link_groups for device in group}
        lone = tuple((device,) for device in range(devices) if device not in grouped)
        return self.host_link_groups + lone

    def drive_ns(self, devices: int, size_bytes: int) -> tuple[int, int]:
        """Return how long the drives take to write a copy, and to read it: at the share of one link, as
        all links of a node may be busy. 0 without drives, and for what is written behind a copy."""
        if self.nvme is None:
            return 0, 0
        share = max(map(len, self.links_by_node(devices)))
        write, read = self.nvme.write_bytes_per_s, self.nvme.read_bytes_per_s
        out, back = (
            round_half_up(Fraction(size_bytes * share * 10**9, rate)) for rate in (write, read)
        )
        return 0 if self.writes_behind else out, back

    def links_by_node(self, devices: int) -> list[list[tuple[int, ...]]]:
        """Per node, the devices on each of its links that are on this node."""
        size = self.devices_per_node or devices
        return [
            [
                here
                for link in self.links(devices)
                if (here := tuple(device for device in link if device // size == node))
            ]
            for node in range(-(-devices // size))
        ]

    def staged_bytes(self, devices: int, largest: Sequence[int]) -> int:
        """Return the most that copies under way on one node move at a time, given the largest copy of each
        device: each link carries one, or one in each direction."""
        most = 0
        for links in self.links_by_node(devices):
            alone = self.host_link == "single"
            most = max(
                most,
                sum(
                    max(largest[device] for device in link)
                    * (1 if alone or (self.copy_engines == "shared" and len(link) == 1) else 2)
                    for link in links
                ),
            )
        return most


def check_offload(
    offload: Offload, devices: int, stages: Sequence[StageCost], placement: Sequence[int]
) -> None:
    """Refuse copies without times, devices that do not exist, and a staging buffer that is too small.

    Raises:
        ProfileError: names the key and what is wrong with it.
    """
    if any(cost.t_offload_ns is None or cost.t_reload_ns is None for cost in stages):
        raise ProfileError(
            "offload: give t_offload_* (or d2h_gb_per_s) and t_reload_* (or h2d_gb_per_s)"
        )
    seen: set[int] = set()
    for group in offload.host_link_groups:
        for device in group:
            if not 0 <= device < devices:
                raise ProfileError(
                    f"offload.host_link_groups: device {device} does not exist;"
                    f" devices are 0 to {devices - 1}"
                )
            if device in seen:
                raise ProfileError(
                    f"offload.host_link_groups: groups overlap: device {device} is in more than one place"
                )
            seen.add(device)
    node = offload.devices_per_node
    if node is not None and not 1 <= node <= devices:
        raise ProfileError(f"offload.devices_per_node: must be from 1 to {devices}, got {node}")
    if offload.nvme is None or offload.nvme.staging_bytes is None:
        return
    largest = [0] * devices
    for cost, device in zip(stages, placement, strict=True):
        parts = [part.offloadable for part in cost.slices or (cost,)]
        largest[device] = max(largest[device], *parts)
    if offload.writes_behind:
        if max(largest) > offload.nvme.staging_bytes:
            raise ProfileError(
                f"offload.nvme.staging: {format_size(offload.nvme.staging_bytes)} of host memory, but one"
                f" copy takes up to {format_size(max(largest))}; give more"
            )
        return
    needed = offload.staged_bytes(devices, largest)
    if needed > offload.nvme.staging_bytes:
        raise ProfileError(
            f"offload.nvme.staging: {format_size(offload.nvme.staging_bytes)} of host memory, but copies"
            f" under way on one node move up to {format_size(needed)} at a time; give more, or let"
            " more devices share a link (host_link_groups)"
        )
