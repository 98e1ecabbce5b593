from benchmarks.destinations.shape import small

PIPELINE = small("alone")
