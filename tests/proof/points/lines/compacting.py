from tests.proof.points.lines.shape import compacting

PIPELINE = compacting("compacting")
