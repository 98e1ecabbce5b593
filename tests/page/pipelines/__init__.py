"""The specs of the page's tests; with those of a folder that the environment names."""

import os

MORE = "RATCHET_TEST_MORE"
__path__ += [folder for folder in (os.environ.get(MORE),) if folder]
