"""What is committed goes to destinations, each row once."""
