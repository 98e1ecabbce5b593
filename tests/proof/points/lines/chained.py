from tests.proof.points.lines.shape import chained

PIPELINE = chained("chained", "onward")
