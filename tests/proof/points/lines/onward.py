from tests.proof.points.lines.shape import through_connect

PIPELINE = through_connect("onward")
