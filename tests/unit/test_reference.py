"""The files of the docs that are made from the code are what the code says, and say all of it."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

import ratchet
from ratchet.reference.commands import every_command
from ratchet.reference.fields import SECTIONS, meanings, shown
from ratchet.reference.pages import DOCS, PAGES

KINDS = [kind for kinds in SECTIONS.values() for kind in kinds]


@pytest.mark.parametrize("name", PAGES)
def test_a_file_made_from_the_code_is_what_the_code_says(name):
    assert (DOCS / name).read_text() == PAGES[name](), "make it anew: make reference"


def test_the_page_of_the_spec_has_everything_that_specs_are_made_of():
    public = {value for name in ratchet.__all__ if isinstance(value := getattr(ratchet, name), type)}
    assert {kind for kind in public if issubclass(kind, BaseModel)} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_field_of_a_spec_says_what_it_means(kind):
    assert [name for name in shown(kind) if not meanings(kind).get(name)] == []


@pytest.mark.parametrize("name", every_command())
def test_every_command_and_option_says_what_it_means(name):
    command = every_command()[name]
    assert command.help and [param.name for param in command.params if not param.help] == []
