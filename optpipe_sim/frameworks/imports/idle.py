"""Why the devices of a real run idled, derived from the dependencies of its ops."""

from __future__ import annotations

import numpy as np

from ...trace import Trace

CAUSES = ("fill", "waiting", "transfer", "host", "drain")


def idle_of_run(trace: Trace) -> list[dict[str, int]]:
    """Return, per device, its idle time in ns by cause; the causes add up to the total.

    `Trace.waits_ns` uses the message time of the profile; this function uses the times of the run,
    as a posted NCCL receive waits and transfers in one kernel.

    - ``fill``: before its first op; ``drain``: after its last op.
    - ``waiting``: while the op that it needs ran on another device.
    - ``transfer``: from the end of that op until its own began; if the device was still busy when
      that op ended, at most the usual time of a message (``t_comm`` of the trace's profile).
    - ``host``: while all its inputs were available.
    """
    schedule = trace.schedule
    needed = np.full(len(schedule), -(2**60))
    messages = trace.messages
    np.maximum.at(needed, messages.consumer, trace.end_ns[messages.producer])
    found = []
    for rows in trace.compute_rows:
        start, end, sent = trace.start_ns[rows], trace.end_ns[rows], needed[rows]
        before, start, sent = end[:-1], start[1:], sent[1:]
        idle = np.maximum(0, start - before)
        waiting = np.clip(sent - before, 0, idle)
        usual = np.clip(sent + trace.profile.t_comm_ns - before, 0, idle)
        transfer = np.where(sent > before, idle - waiting, usual)
        found.append(
            {
                "fill": int(trace.start_ns[rows[0]]),
                "waiting": int(waiting.sum()),
                "transfer": int(transfer.sum()),
                "host": int((idle - waiting - transfer).sum()),
                "drain": int(trace.makespan_ns - end[-1]),
            }
        )
    return found
