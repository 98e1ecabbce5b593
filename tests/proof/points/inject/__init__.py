"""A directory for PYTHONPATH, which has nothing but the hook and what starts it in every Python process."""
