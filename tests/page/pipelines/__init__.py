"""The specs of the page's tests."""
