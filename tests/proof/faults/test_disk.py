"""I1, I5: a disk that is full costs time and nothing else."""

from __future__ import annotations

import errno
import os
import threading

import psutil
import psycopg
import pytest

from ratchet.dev.stack import Stack
from tests.until import until

from .conftest import Endure
from .disk import Disk, DiskFull, Refused
from .fault import has_struck
from .kinds import fault


def own_thread(work) -> None:
    """Do something in a thread that ends with it: what it has mounted is seen by nobody else, and gone afterwards.

    Where no disk may be mounted the test is skipped; those with all servers fail there.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed and isinstance(failed[0], Refused):
        pytest.skip(str(failed[0]))
    if failed:
        raise failed[0]


def test_a_disk_is_full_when_it_is_filled_has_room_when_it_is_cleared_and_leaves_nothing(tmp_path):
    at = tmp_path / "small"

    def fill_and_clear() -> None:
        with Disk(at, 2**20) as disk:
            for _ in range(3):
                (at / "kept").write_bytes(b"kept")
                disk.fill()
                with pytest.raises(OSError) as raised:
                    (at / "more").write_bytes(b"more" * 2000)
                assert raised.value.errno == errno.ENOSPC
                disk.clear()
                (at / "more").write_bytes(b"more" * 2000)
                (at / "more").unlink()
            assert os.listdir(at) == ["kept"]
            assert str(at) not in "".join(mount.mountpoint for mount in psutil.disk_partitions(all=True))
        assert os.listdir(at) == []

    own_thread(fill_and_clear)
    assert os.listdir(at) == []


def test_postgresql_refuses_to_write_on_a_full_disk_and_goes_on_when_there_is_room(tmp_path):
    def work() -> None:
        with Disk(tmp_path / "postgres", 256 * 2**20) as disk, Stack(tmp_path, {"postgres"}) as stack:
            log = tmp_path / "logs" / "postgres.log"
            full = DiskFull(disk, log, lambda: until("PostgreSQL is ready", stack._postgres.is_ready, 60))
            with psycopg.connect(stack.ledger_url, autocommit=True) as conn:
                conn.execute("create table t as select 1 as x")
                full.strike()
                assert not has_struck(full)
                with pytest.raises(psycopg.Error):
                    conn.execute("create table more as select g, repeat('x', 1000) from generate_series(1, 100000) g")
                assert has_struck(full)
            # It may have ended, and be started again.
            full.heal()
            with psycopg.connect(stack.ledger_url, autocommit=True) as conn:
                conn.execute("insert into t values (2)")
                assert conn.execute("select array_agg(x) from t").fetchone() == ([1, 2],)

    own_thread(work)


@pytest.mark.all
@pytest.mark.timeout(1200)
def test_a_full_disk_of_postgresql_costs_time_and_nothing_else(world, endure: Endure):
    endure(fault(world, "PostgreSQL's disk full"))
