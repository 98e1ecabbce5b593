from tests.proof.points.lines.shape import through_submit

PIPELINE = through_submit("submit")
