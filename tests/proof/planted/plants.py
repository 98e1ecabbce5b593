"""All mistakes that are planted, by what they are made in."""

from tests.proof.planted import data_plane, line, rows

PLANTS = [*rows.PLANTS, *line.PLANTS, *data_plane.PLANTS]
