from tests.proof.points.lines.shape import keyed, version_of

VERSIONS = keyed("keyed_2")
PIPELINE = version_of(*VERSIONS)
