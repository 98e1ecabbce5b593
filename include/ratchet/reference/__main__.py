"""Write every file of the docs that is made from the code: `make reference`."""

from ratchet.reference.pages import DOCS, PAGES

for name, document in PAGES.items():
    (DOCS / name).write_text(document())
