"""What each sink stages, keeps and folds."""
