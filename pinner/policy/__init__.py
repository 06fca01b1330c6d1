"""What is worth knowing of a run's choices before they are pinned, and what is allowed."""
