"""The specs of the tests on servers: fewer than those of the other acceptance tests, as maintenance sees to each."""
