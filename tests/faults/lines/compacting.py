from tests.faults.lines.shape import compacting

PIPELINE = compacting("compacting")
