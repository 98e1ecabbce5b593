"""What the project measures of itself, on servers of its own below .state."""
