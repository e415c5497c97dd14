"""Why the devices of a real run stood idle, told from nothing but what depends on what."""

from __future__ import annotations

import numpy as np

from ...trace import Trace

CAUSES = ("fill", "waiting", "transfer", "host", "drain")


def idle_of_run(trace: Trace) -> list[dict[str, int]]:
    """Per device, its idle time in ns by cause; the parts add up to all of it.

    Unlike `Trace.waits_ns`, which knows what a message should take, this takes it from the run, whatever
    kernels ran meanwhile: a receive that NCCL has posted waits and transfers in one kernel.

    - ``fill``: before its first op; ``drain``: after its last one.
    - ``waiting``: while the op that it needs ran on another device.
    - ``transfer``: from the end of that op until its own began; where the device was still at work
      when that ended, no longer than a message usually takes (``t_comm`` of the trace's profile).
    - ``host``: while it had all that it needs.
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
