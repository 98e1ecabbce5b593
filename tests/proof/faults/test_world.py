"""Every fault can strike again and again, and leaves nothing behind."""

from __future__ import annotations

import time
from contextlib import suppress

import psycopg
import pytest

from tests.until import until

from .fault import NotNow
from .kinds import NAMES, fault, faults
from .world import World

pytestmark = [pytest.mark.all, pytest.mark.timeout(900)]


def is_whole(world: World) -> bool:
    """Whether nothing of any fault is left: every server answers, by the right clock, on every way, with room."""
    for server in NAMES:
        world.answers(server)
    with psycopg.connect(world.stack.ledger_url) as conn:
        (late,) = conn.execute("select abs(extract(epoch from clock_timestamp()) - %s)", [time.time()]).fetchone()
        conn.execute("create temporary table room as select repeat('x', 1000) from generate_series(1, 10000)")
    troubled = [link for proxy in world.network.proxies.values() for link in list(proxy.links) if link.trouble]
    return late < 5 and not troubled and not world.strays()


def test_every_kind_has_a_name_of_its_own_and_may_be_healed_before_it_has_struck(world: World):
    made = faults(world)
    assert len({one.kind for one in made}) == len(made)
    for one in made:
        one.heal()
    until("all servers answer", lambda: is_whole(world), 60)


@pytest.mark.parametrize("server", NAMES)
def test_a_server_that_is_killed_is_another_process_when_it_is_healed(world: World, server: str):
    killed, before = fault(world, f"{NAMES[server]} killed"), world.process(server)
    killed.strike()
    assert not before.is_running()
    killed.heal()
    killed.heal()
    assert world.process(server) != before
    until("all servers answer", lambda: is_whole(world), 60)


def test_what_is_healed_at_once_has_left_nothing_however_often(world: World):
    for _ in range(3):
        for one in faults(world):
            if not one.kind.endswith("killed"):
                with suppress(NotNow):
                    one.strike()
                one.heal()
    until("all servers answer", lambda: is_whole(world), 120)
