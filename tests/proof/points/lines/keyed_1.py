from tests.proof.points.lines.shape import keyed, version_of

VERSIONS = keyed("keyed_1")
PIPELINE = version_of(*VERSIONS)
