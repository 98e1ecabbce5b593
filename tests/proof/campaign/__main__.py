"""`make campaign`: a thousand random faults while ten million records pass through five pipelines.

`SEED=7 PART=2/10 make campaign` does one part of ten, with a tenth of both, in an hour at most; a part that is done
is not done again. The report joins all parts of a commit and a seed. FAULTS and RECORDS ask for other numbers.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

from ratchet.dev.stack import CHECKOUT
from tests.proof.parts import Part, commit, wide_console

from .part import Campaign
from .record import STRUCK, PartRecord
from .report import Report

FAULTS, RECORDS = 1_000, 10_000_000
STATE = CHECKOUT / ".state" / "campaign"


def main() -> int:
    """The exit status: 1 if anything is lost, doubled, torn or left, or if the part, or all, show too little."""
    console, part, at = wide_console(), Part.asked(), commit()
    faults, records = (
        -(-int(os.environ.get(n) or d) // part.of) for n, d in (("FAULTS", FAULTS), ("RECORDS", RECORDS))
    )
    of = STATE / f"{at}-{part.seed}"
    of.mkdir(parents=True, exist_ok=True)
    file = of / f"part-{part.number}-of-{part.of}.json"
    started = time.monotonic()

    def say(line: str) -> None:
        console.print(f"{(time.monotonic() - started) / 60:5.1f} min: {line}", markup=False, soft_wrap=True)

    if not file.exists():
        say(f"part {part} of commit {at}, seed {part.seed}: {faults:,} faults, {records:,} records")
        home = STATE / f"servers-{part.number}"
        shutil.rmtree(home, ignore_errors=True)
        Campaign(home, part, faults, records, say).run().save(file)
    done = Report(map(PartRecord.load, sorted(of.glob(f"part-*-of-{part.of}.json"))))
    page = of / f"report-of-{part.of}.html"
    done.save(page)
    say(f"{done.headline}; the report is {page}")
    mine = PartRecord.load(file)
    committed = sum(pipeline.committed for pipeline in mine.pipelines)
    struck = sum(fault.what_happened == STRUCK for fault in mine.faults)
    if struck < faults or committed < records:
        say(f"only {struck:,} faults and {committed:,} records were possible in an hour; ask for more parts")
        return 1
    if not done.missing:
        for why in done.short:
            say(why)
    return 1 if done.wrong or (done.short and not done.missing) else 0


if __name__ == "__main__":
    sys.exit(main())
