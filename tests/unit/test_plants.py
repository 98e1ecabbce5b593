"""The planted mistakes are changes of the code as it is today."""

from __future__ import annotations

import pytest

from ratchet.dev.stack import CHECKOUT
from tests.proof.planted.plant import Plant
from tests.proof.planted.plants import PLANTS


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_every_mistake_can_be_planted(plant: Plant):
    for change in plant.changes:
        text = (CHECKOUT / "include" / "ratchet" / change.file).read_text()
        assert text.count(change.old) == 1 and change.new != change.old
