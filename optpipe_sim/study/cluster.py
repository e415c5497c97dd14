"""The points of a sweep on a Dask cluster: ``dask scheduler`` on one machine, ``dask worker`` on all."""

from __future__ import annotations

import datetime
import logging
import queue
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import current_process
from typing import Any
from urllib.parse import urlsplit

from ..errors import OptPipeError
from ..version import __version__
from .compute import DIED, Finished, compute
from .points import Point
from .store.store import Record

CONNECT_S = 10
LOOK_S = 2.0  # after so long without a message, check whether any worker runs
ANSWER_S = 10.0  # timeout of the scheduler's answer
WORKERS_S = 20.0  # how long to wait for lost workers to return
CLOSE_S = 2
BATCH = 8  # points sent at once where there are many for each worker


def on_cluster(
    points: Sequence[Point], address: str, notice: Callable[[str], None] = lambda text: None
) -> Iterator[Finished]:
    """Yield the points as the workers finish them. Undelivered points of a worker that dies run on
    another worker; a point that kills several workers is recorded as failed. Without any worker
    it waits up to `WORKERS_S` seconds for one, and calls `notice`.

    Raises:
        OptPipeError: if Dask is not installed, the address does not answer, there is no worker or
            none comes back, the scheduler exits, or a worker has another version of this package.
    """
    try:
        from distributed import Client
    except ImportError:
        raise OptPipeError(
            "--cluster: needs Dask; install it with pip install 'optpipe-sim[cluster]'"
        ) from None
    _check_address(address)
    for name in [
        name for name in logging.root.manager.loggerDict if name.startswith("distributed")
    ]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they log what is handled here
    try:
        client: Any = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        why = str(error).splitlines()[0] if str(error) else "no answer"
        raise OptPipeError(f"--cluster {address}: cannot be reached: {why}") from None
    try:
        workers = _check_workers(client, address)
        size = max(1, min(BATCH, len(points) // (4 * workers)))
        batches = [points[at : at + size] for at in range(0, len(points), size)]
        yield from _delivered(_Cluster(client, address, notice), batches)
    finally:
        with suppress(Exception):  # the scheduler may have exited
            client.close(timeout=CLOSE_S)


class _Cluster:
    """A Dask client with its pending futures; notices when no worker is left."""

    def __init__(self, client: Any, address: str, notice: Callable[[str], None]) -> None:
        self.client, self.address, self.notice = client, address, notice
        self.done: queue.Queue[Any] = queue.Queue()
        self.idle_since: float | None = None

    def submit(self, batch: Sequence[Point]) -> Any:
        """Submit points; `next` returns their future once it is done."""
        future = self.client.submit(_compute_all, batch, pure=False)
        future.add_done_callback(self.done.put)
        return future

    def next(self) -> Any:
        """Wait for the next future that is done.

        Raises:
            OptPipeError: if the scheduler has exited, or all workers have and none comes back.
        """
        while True:
            try:
                return self.done.get(timeout=LOOK_S)
            except queue.Empty:
                self._check_alive()

    def result(self, future: Any) -> list[Finished]:
        """Return the result of a future; if its worker died, another one computes it again.

        Raises:
            OptPipeError: as `next`.
        """
        while True:
            try:
                found: list[Finished] = future.result(timeout=LOOK_S)
                return found
            except TimeoutError:
                self._check_alive()

    def _check_alive(self) -> None:
        where = f"--cluster {self.address}"
        if self.client.status != "running":
            raise OptPipeError(f"{where}: the scheduler has gone")
        try:
            workers = self.client.sync(self.client.scheduler.ncores, callback_timeout=ANSWER_S)
        except Exception:  # a connection can end with many kinds of errors
            raise OptPipeError(f"{where}: the scheduler does not answer any more") from None
        if workers:
            self.idle_since = None
            return
        now = time.monotonic()
        if self.idle_since is None:
            self.idle_since = now
            self.notice(
                f"{where}: all workers have gone; waiting {WORKERS_S:g} s for dask worker {self.address}"
            )
        elif now - self.idle_since > WORKERS_S:
            raise OptPipeError(f"{where}: all workers have gone, and none came back")


def _delivered(cluster: _Cluster, batches: Sequence[Sequence[Point]]) -> Iterator[Finished]:
    """Yield the results of the workers as they arrive."""
    from distributed import KilledWorker

    futures = {cluster.submit(batch): batch for batch in batches}
    while futures:
        future = cluster.next()
        batch = futures.pop(future)
        if future.cancelled():  # as are all futures of a lost scheduler
            raise OptPipeError(f"--cluster {cluster.address}: the scheduler has gone")
        problem = future.exception(timeout=ANSWER_S)
        if problem is None:
            yield from cluster.result(future)
        elif isinstance(problem, KilledWorker) and len(batch) > 1:
            futures.update({cluster.submit([point]): [point] for point in batch})
        elif isinstance(problem, KilledWorker):
            yield batch[0].key, Record([], DIED, 0.0, datetime.date.today().isoformat())
        else:
            why = f"{type(problem).__name__}: {problem}"
            raise OptPipeError(f"--cluster {cluster.address}: {why}")


def _check_address(address: str) -> None:
    """Raise for an address that does not answer, before Dask retries it repeatedly."""
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
    """Return the number of worker threads."""
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
    # Dask marks its workers as daemons, which must not have children; solvers start engines as
    # child processes, and make sure that these end
    current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    return [compute(point) for point in points]
