"""`ratchet doctor`: what of the servers, versions, rights, topics and lines is not as it should be, with the remedy."""
