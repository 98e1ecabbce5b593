from tests.proof.points.lines.shape import sending

PIPELINE = sending("sending")
