from tests.points.lines.shape import compacting

PIPELINE = compacting("compacting")
