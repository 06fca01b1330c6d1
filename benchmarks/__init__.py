"""What is claimed about speed, measured as ratios of two things in one run."""
