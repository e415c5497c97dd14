"""The points of a sweep on a Dask cluster: ``dask scheduler`` on one machine, ``dask worker`` on all."""

from __future__ import annotations

import datetime
import logging
import socket
from collections.abc import Iterator, Sequence
from multiprocessing import current_process
from typing import Any
from urllib.parse import urlsplit

from .. import __version__
from ..errors import OptPipeError
from .points import Point
from .run import DIED, Finished, compute
from .store import Record

CONNECT_S = 10
BATCH = 8  # points sent at once where there are many for each worker


def on_cluster(points: Sequence[Point], address: str) -> Iterator[Finished]:
    """The points as the workers finish them. What a worker that dies had not delivered runs
    elsewhere; a point that kills several is recorded as failed.

    Raises:
        OptPipeError: where Dask is not installed, nobody answers, no worker is there, or one has
            another version of this package.
    """
    try:
        from distributed import Client, KilledWorker, as_completed
    except ImportError:
        raise OptPipeError(
            "--cluster: needs Dask; install it with pip install 'optpipe-sim[cluster]'"
        ) from None
    _check_address(address)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it reports what is handled here
    try:
        client: Any = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        why = str(error).splitlines()[0] if str(error) else "no answer"
        raise OptPipeError(f"--cluster {address}: cannot be reached: {why}") from None
    with client:
        workers = _check_workers(client, address)
        size = max(1, min(BATCH, len(points) // (4 * workers)))
        batches = [points[at : at + size] for at in range(0, len(points), size)]
        futures = {client.submit(_compute_all, batch, pure=False): batch for batch in batches}
        waiting: Any = as_completed(futures, loop=client.loop)
        for future in waiting:
            batch = futures.pop(future)
            problem = future.exception()
            if problem is None:
                yield from future.result()
            elif isinstance(problem, KilledWorker) and len(batch) > 1:
                alone = {
                    client.submit(_compute_all, [point], pure=False): [point] for point in batch
                }
                futures.update(alone)
                waiting.update(alone)
            elif isinstance(problem, KilledWorker):
                yield batch[0].key, Record([], DIED, 0.0, datetime.date.today().isoformat())
            else:
                raise OptPipeError(f"--cluster {address}: {type(problem).__name__}: {problem}")


def _check_address(address: str) -> None:
    """Refuse an address where nobody listens, before Dask tries it again and again."""
    try:
        where = urlsplit(address)
        host, port = where.hostname, where.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise OptPipeError(f"--cluster {address}: is no address; write tcp://HOST:PORT")
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        raise OptPipeError(
            f"--cluster {address}: cannot be reached: {error.strerror or 'no answer'}"
        ) from None


def _check_workers(client: Any, address: str) -> int:
    """How many threads of workers there are."""
    threads: dict[str, int] = client.nthreads()
    if not threads:
        raise OptPipeError(f"--cluster {address}: has no workers; start dask worker {address}")
    for worker, found in client.run(_version).items():
        if found != __version__:
            raise OptPipeError(
                f"--cluster {address}: {worker} has optpipe_sim {found}, not {__version__}"
            )
    return sum(threads.values())


def _version() -> str:
    return __version__


def _compute_all(points: Sequence[Point]) -> list[Finished]:
    # Dask marks its workers as daemons, which must not have children; solvers start their engines as
    # such, and see to it that these end
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    return [compute(point) for point in points]
