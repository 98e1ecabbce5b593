"""The campaign's report: what parts say is joined, and nothing that is wrong is hidden."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.proof.campaign.page import SHOWN, render
from tests.proof.campaign.record import (
    NOT_NOW,
    STRUCK,
    CommitRecord,
    OperationRecord,
    PartRecord,
    PipelineRecord,
    Readings,
    SentRecord,
    Unreadable,
)
from tests.proof.campaign.report import NotOne, Recovery, Report, main
from tests.proof.campaign.timeline import Timeline, group

from .campaign_sample import COMMIT, KINDS, SHAPES, compared, fault, part, sample


class Page(HTMLParser):
    """What a browser would make of the page: its elements, and the headline's text."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headline, self.text, self._open = "", "", ""
        self.feed(html)
        self.finding = next(given["class"] or "" for tag, given in self.tags if "finding" in (given.get("class") or ""))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data):
        self.text += data if self._open != "style" else ""
        self.headline += data.replace("\N{NO-BREAK SPACE}", " ") if self._open == "h1" else ""

    def handle_endtag(self, tag):
        self._open = ""


def shown(*parts: PartRecord) -> Page:
    return Page(render(Report(parts)))


def test_counts_of_parts_are_added():
    counted = PipelineRecord("orders", "Append", 10, 5, 3, 1, 2)
    first, second = (part(n, 2, pipelines=[counted], comparison=[compared()], faults=[fault()]) for n in (1, 2))
    report = Report([second, first])
    assert [one.part for one in report.parts] == ["1/2", "2/2"]
    assert report.pipelines == [PipelineRecord("orders", "Append", 20, 10, 6, 2, 4)]
    assert (report.comparison[0].read, report.comparison[0].rows, report.comparison[0].dead_letters) == (2468, 2460, 8)
    assert report.struck == 2


def test_pipelines_of_different_names_stay_apart():
    report = Report([part(comparison=[compared(), compared(pipeline="clicks", read=7)])])
    assert [(one.pipeline, one.read) for one in report.comparison] == [("orders", 1_234), ("clicks", 7)]


def test_parts_of_different_commits_are_refused_by_name():
    with pytest.raises(NotOne, match=r"different commits.*part 2/2, seed 7 is of 0123.*part 1/2, seed 7 is of 7a53"):
        Report([part(1, 2), part(2, 2, commit="0123456789ab")])


@pytest.mark.parametrize(
    "parts, why",
    [
        ([], "no part"),
        ([part(1, 2), part(1, 2)], "given twice: part 1/2, seed 7"),
        ([part(1, 2), part(2, 3)], "in 2 parts and in 3"),
        ([part(3, 2)], "there is no part 3/2"),
    ],
)
def test_parts_that_make_no_campaign_are_refused(parts, why):
    with pytest.raises(NotOne, match=why):
        Report(parts)


def test_parts_of_several_seeds_are_joined():
    report = Report([part(1, 2, seed=9), part(1, 1), part(2, 2, seed=9)])
    assert not report.missing
    assert report.again == [
        f"git checkout {COMMIT}",
        "SEED=7 PART=1/1 make campaign",
        "SEED=9 PART=1/2 make campaign",
        "SEED=9 PART=2/2 make campaign",
    ]


def test_a_missing_part_is_named():
    page = shown(*sample()[:2])
    assert "short" in page.finding and "part 3/4, seed 7 is missing\npart 4/4, seed 7 is missing" in page.text


def test_recovery_is_the_median_and_the_worst_of_what_was_measured():
    told = [fault(recovered_after=s) for s in (9.0, 1.0, 2.0, 4.0)]
    told += [fault(), fault(recovered_after=500.0, what_happened=NOT_NOW, healed_at=None)]
    assert Report([part(faults=told)]).recovery == [Recovery("Kafka killed", 5, 1, 4, 3.0, 9.0)]


def test_the_worst_recovery_comes_first_and_the_unmeasured_last():
    told = [fault("a killed"), fault("b killed", 0.0), fault("c killed", 3.0), fault("d killed", 2.0)]
    assert [one.kind[0] for one in Report([part(faults=told)]).recovery] == ["c", "d", "b", "a"]


def test_recovery_is_of_all_parts():
    report = Report([part(1, 2, faults=[fault(recovered_after=1.0)]), part(2, 2, faults=[fault(recovered_after=8.0)])])
    assert (report.recovered.p50, report.recovered.worst) == (4.5, 8.0)


def test_a_campaign_without_a_flaw_says_so_in_its_own_numbers():
    parts = sample()
    struck = sum(one.what_happened == STRUCK for each in parts for one in each.faults)
    read = sum(one.read for each in parts for one in each.comparison)
    page = shown(*parts)
    said = f"{struck:,} faults, {read:,} records in 5 pipelines: nothing lost, nothing doubled, nothing torn"
    assert (page.headline, page.finding) == (said, "finding good")


def test_every_number_of_the_headline_follows_the_data():
    wrong = compared(read=55, lost=11, doubled=12, foreign=13, different=14)
    told = part(
        faults=[fault()] * 21 + [fault(what_happened=NOT_NOW)] * 9,
        comparison=[wrong],
        readings=Readings(8, 99, ["t"] * 15),
        left=["l"] * 16,
        history=["h"] * 17,
        verify=["v"] * 18,
    )
    assert [int(n) for n in re.findall(r"\d+", shown(told).headline)] == [21, 55, 1, 11, 12, 13, 14, 15, 16, 17, 18]


@pytest.mark.parametrize("what", ["lost", "doubled", "foreign", "different"])
def test_a_single_record_that_is_wrong_is_said_at_the_top(what):
    parts = sample(of=2)
    one = replace(parts[1].comparison[2], **{what: 1}, examples=["clicks 3:4711"])
    parts[1] = replace(parts[1], comparison=[*parts[1].comparison[:2], one, *parts[1].comparison[3:]])
    page = shown(*parts)
    assert page.finding == "finding wrong" and page.headline.endswith(f"in 5 pipelines: 1 {what}")
    before, _, _ = page.text.partition("faults that struck")
    assert "clicks 3:4711" in before and "clicks, part 2/2, seed 7" in before


@pytest.mark.parametrize(
    "said, headline",
    [
        ({"readings": Readings(8, 5, ["orders shows 3, clicks 4"], offsets=5)}, "1 torn"),
        ({"left": ["stage orders_7_1"]}, "1 left behind"),
        ({"history": ["event 9"]}, "1 wrong in the history"),
        ({"verify": ["orders 3"]}, "1 found by ratchet verify"),
        ({"sent": [SentRecord("sent-last", 5, 1, ["sent-last lacks 7"])]}, "1 different in a destination"),
        ({"faults": [fault(what_happened="it did not end")]}, "1 gone wrong in striking or healing"),
        ({"faults": [fault(healed_at=None)]}, "1 gone wrong in striking or healing"),
    ],
)
def test_whatever_else_is_wrong_is_said_at_the_top(said, headline):
    page = shown(replace(sample(of=1)[0], **said))
    assert page.finding == "finding wrong" and page.headline.endswith(headline)


def test_a_witness_that_reads_less_than_producers_committed_is_wrong():
    given = PipelineRecord("orders", "Append", 1_240, 0, 3, 0, 0)
    page = shown(part(pipelines=[given], comparison=[compared()]))
    assert page.headline.endswith("6 committed and not read by the witness")


def test_an_empty_part_is_no_proof():
    page = shown(part())
    assert page.headline == "0 faults, 0 records in 0 pipelines: nothing was compared, no snapshot was read"
    assert page.finding == "finding short"


@pytest.mark.parametrize(
    "change, why",
    [
        ({"comparison": []}, "orders was not compared in part 1/4, seed 7"),
        ({"sent": []}, "no destination was compared in part 1/4, seed 7"),
        ({"readings": Readings(8, 0, offsets=5)}, "no snapshot was read in part 1/4, seed 7"),
        ({"readings": Readings(8, 5)}, "no offset that monitoring is told was read in part 1/4, seed 7"),
        ({"readings": Readings(7, 5, offsets=5)}, "readers at once: 7, asked 8"),
        (
            {"faults": [fault("the moon killed", what_happened=NOT_NOW, healed_at=None)]},
            "nothing to strike was ever found: the moon killed",
        ),
        ({"faults": []}, "faults that struck: 753, asked 1,000"),
    ],
)
def test_what_shows_less_than_it_should_is_not_good(change, why):
    first, *others = sample()
    report = Report([replace(first, **change), *others])
    assert report.state == "short" and why in report.short


def test_a_checkout_with_changed_files_is_not_good():
    assert Report([replace(one, commit=f"{COMMIT}+") for one in sample()]).short == [
        "files had been changed since the commit"
    ]


def test_hostile_words_stay_words():
    evil = "</title></pre><script>alert(1)</script><img src=x onerror='alert(2)'>\"&{{ 7*7 }}"
    told = part(
        commit=evil,
        pipelines=[PipelineRecord(evil, evil, 1, 1, 1, 1, 1)],
        faults=[fault(evil, 3.0, target=evil), fault(what_happened=evil)],
        commits=[CommitRecord(evil, 1, 1, 5.0, 10, 1, 1, 0.5)],
        operations=[OperationRecord(5.0, evil, evil, evil)],
        readings=Readings(1, 1, [evil]),
        comparison=[compared(pipeline=evil, lost=1, examples=[evil])],
        sent=[SentRecord(evil, 1, 1, [evil])],
        left=[evil],
        history=[evil],
        verify=[evil],
    )
    page = shown(told)
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not [name for _, given in page.tags for name in given if name.startswith("on")]
    assert page.text.count(evil) >= 15


def test_the_page_needs_nothing_from_elsewhere():
    html = render(Report(sample(of=1)))
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in Page(html).tags}
    assert not re.search(r"https?:|url\(|@import|src=", html)


def test_long_lists_are_cut_on_the_page_and_whole_in_the_json():
    report = Report([part(left=[f"stage {n}." for n in range(100)])])
    page = Page(render(report))
    assert f"stage {SHOWN - 1}." in page.text and f"stage {SHOWN}." not in page.text and "and 80 more" in page.text
    assert len(report.as_json()["parts"][0]["left"]) == 100


def test_every_fault_commit_and_operation_is_on_the_timeline():
    for told in sample(of=2):
        line = Timeline.of(told, dict.fromkeys(SHAPES, 10_000))
        drawn = sum(mark.kind != "tail" for lane in line.lanes for mark in lane.marks)
        assert drawn == len(told.faults) + len(told.commits) + len(told.operations)


def test_faults_of_a_group_that_overlap_do_not_hide_one_another():
    told = part(faults=[fault(struck_at=n, healed_at=50.0) for n in range(5)] + [fault(struck_at=900.0, healed_at=910)])
    tops = [mark.path.partition(" ")[2].partition("h")[0] for mark in Timeline.of(told, {}).lanes[0].marks]
    assert len(set(tops)) == 5 and tops[-1] == tops[0]


def test_the_longest_gap_between_commits_is_marked():
    done = [CommitRecord("orders", n, 0, at, 10, 1, 1, 0.0) for n, at in enumerate((400.0, 10.0, 20.0, 100.0))]
    assert Timeline.of(part(commits=done), {"orders": 10}).lanes[0].gap == (100.0, 300.0)
    assert Report([part(commits=done)]).longest_gap == {"orders": 300.0}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_group_of_its_own(kind):
    assert group(kind) != "others"


def test_a_record_is_read_as_it_was_written(tmp_path: Path):
    told = sample(of=1)[0]
    told.save(tmp_path / "1.json")
    assert PartRecord.load(tmp_path / "1.json") == told
    assert [file.name for file in tmp_path.iterdir()] == ["1.json"]


@pytest.mark.parametrize(
    "change, why",
    [
        ({"seed": -1}, "seed: Input should be greater"),
        ({"part": "3 of 10"}, "part: String should match"),
        ({"began": "2026-11-21T10:00:00"}, "began: Input should have timezone"),
        ({"losses": 1}, "losses: Unexpected"),
        ({"comparison": [{"pipeline": "orders"}]}, r"comparison\.0\.read: Field required"),
    ],
)
def test_what_is_no_record_is_refused_with_the_place(tmp_path: Path, change, why):
    file = tmp_path / "1.json"
    part().save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(Unreadable, match=f"1.json: not the record of a part: {why}"):
        PartRecord.load(file)


def test_a_count_below_nothing_cannot_be_written():
    with pytest.raises(ValidationError):
        compared(lost=-1)


def test_the_command_writes_page_and_json(tmp_path: Path, capsys):
    parts = sample()
    files = [tmp_path / f"{one.number}.json" for one in parts]
    for one, file in zip(parts, files, strict=True):
        one.save(file)
    assert main([*map(str, files), "-o", str(tmp_path / "report.html")]) == 0
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["state"] == "good" and len(told["parts"]) == 4 and told["headline"] in capsys.readouterr().out
    assert told["headline"] == Page((tmp_path / "report.html").read_text()).headline


def test_the_command_fails_where_something_is_wrong(tmp_path: Path):
    part(left=["stage"]).save(tmp_path / "1.json")
    assert main([str(tmp_path / "1.json"), "-o", str(tmp_path / "report.html")]) == 1


def test_the_command_names_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(SystemExit, match="2.json: No such file"):
        main([str(tmp_path / "2.json")])
